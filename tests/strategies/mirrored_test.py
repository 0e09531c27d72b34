"""MirroredStrategy; the checks stand in tests/distributed."""

import collections

import numpy as np
import pytest
import tensorflow as tf

import strategies
from tests.support.check_jobs import checks_of


@pytest.mark.parametrize(
    ("api", "ops"),
    [
        ("keras", None),
        pytest.param("tf_keras", None, marks=pytest.mark.slow),
        pytest.param("keras", "ReductionToOneDevice", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("check", checks_of("mirrored.py"))
def test_replicas_do_what_one_process_does(run_check, check, api, ops):
    run_check(check, api, *([ops] if ops else []), workers=1)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("check", checks_of("accumulation.py", slow=["adam_over_two_steps"]))
def test_replicas_reduce_inside_conditions(run_check, check, workers):
    run_check(check, 2, workers=workers)


def test_whole_numbers_of_a_batch_stay_whole_and_others_have_a_mean():
    strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"])

    def replica():
        number = tf.distribute.get_replica_context().replica_id_in_sync_group
        number = tf.cast(number, tf.int64)
        ids = tf.stack([number + 5, tf.constant(2**63 - 1, tf.int64)])
        return {
            "ids": ids,
            "bags": tf.RaggedTensor.from_row_lengths(ids, [1, 1]),
            "numbers": tf.cast([number], tf.float32),
            "count": number,
        }

    values = strategy.run(replica)
    batch = strategy.reduce("MEAN", values, axis=None)
    assert batch["ids"].numpy().tolist() == [5, 2**63 - 1]
    assert batch["bags"].to_list() == [[5], [2**63 - 1]]
    assert batch["numbers"].numpy().tolist() == [0.5] and batch["count"] == 0.5
    # By themselves they have one, as in stock tf.distribute.
    np.testing.assert_allclose(strategy.reduce("MEAN", values["ids"], axis=None)[0], 5.5)
    assert strategy.reduce("SUM", {"ids": values["ids"]}, axis=None)["ids"][0] == 11


DTYPES = [tf.float32, tf.float64, tf.int64, tf.int32, tf.bfloat16]


@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_nccl_gets_the_values_of_each_replica_on_its_device(op):
    """As where there are several GPUs; the graph is made, and cannot be run here."""
    nccl = tf.distribute.NcclAllReduce()
    strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=nccl)

    def replica(x):
        total = tf.reduce_sum(x)
        context = tf.distribute.get_replica_context()
        return context.all_reduce(op, [tf.cast(total, dtype) for dtype in DTYPES])

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def step(x):
        sums = strategy.run(replica, args=(x,))
        assert sums[-1].values[1].dtype == tf.bfloat16
        return sums

    graph = step.get_concrete_function().graph
    found = collections.Counter(
        (node.get_attr("T"), node.device[-5:])
        for node in graph.get_operations()
        if node.type == "NcclAllReduce"
    )
    # Values in bfloat16 are sent as float32; integers are added on one device.
    counts = {tf.float32: 2, tf.float64: 1}
    assert found == {(d, f"CPU:{n}"): count for d, count in counts.items() for n in range(2)}
