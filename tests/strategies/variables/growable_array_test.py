"""Arrays that grow; what they hold is tested with the tables that use them."""

import contextlib
import os
import subprocess
import sys

import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from strategies.variables.growable_array import GrowableArray

MANY = """
import tensorflow as tf
from strategies.variables.growable_array import GrowableArray

arrays = [GrowableArray((16,), tf.float32, 0.0) for _ in range(40)]
for array in arrays:
    array.resize(tf.constant(300_000, tf.int64))
print("grown")
"""


@pytest.mark.slow
def test_many_arrays_of_unknown_size_do_not_reserve_more_than_the_memory():
    # oneDNN's allocator refuses to reserve more, even if nothing is written there.
    environ = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": "1"}
    command = [sys.executable, "-c", MANY]
    found = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert found.stdout == "grown\n", found.stderr


@contextlib.contextmanager
def _executed_graphs():
    """Returns a list of the graphs that TensorFlow executes in the block, with all inlined."""
    graphs = []
    context.context().enable_graph_collection()
    yield graphs
    collected = context.context().export_run_metadata().function_graphs
    context.context().disable_graph_collection()
    graphs += [each.post_optimization_graph for each in collected]


@pytest.mark.parametrize("is_inlined", [False, True])
def test_steps_do_not_go_through_the_operations_of_growth(monkeypatch, is_inlined):
    array = GrowableArray((4,), tf.float32, 0.0)
    if is_inlined:  # a control
        monkeypatch.setattr(array, "_extend_in_graph", tf.function(array._extend, autograph=False))

    @tf.function
    def step(length, row):
        array.resize(length)
        array.update(row, tf.ones([1, 4]))

    with _executed_graphs() as graphs:
        for length in (3, 7):
            step(tf.constant(length, tf.int64), tf.constant([length - 1], tf.int64))
    array.resize(tf.constant(9, tf.int64))
    assert array.gather(tf.range(9)).numpy()[:, 0].tolist() == [0, 0, 1, 0, 0, 0, 1, 0, 0]
    of_step = [
        [node.op for node in graph.node]
        for graph in graphs
        if any(node.op == "ResourceScatterUpdate" and "/" not in node.name for node in graph.node)
    ]
    assert of_step
    grows = ["VariableShape" in operations for operations in of_step]
    assert all(grows) if is_inlined else not any(grows), of_step
