"""The streams of operations behind shared memory, without other workers."""

import gc
import subprocess
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf

from strategies.collectives.shared_memory.stream import Stream


def test_what_a_function_that_failed_meanwhile_left_is_not_taken_for_the_next_runs():
    stream, has_begun, may_end = Stream(), threading.Event(), threading.Event()

    def twice(arrays, moment):
        has_begun.set()
        assert may_end.wait(60), "the function waited for the operation"
        return [2 * array for array in arrays]

    def later(index):
        has_begun.wait(60)
        return index

    @tf.function(input_signature=[tf.TensorSpec([None]), tf.TensorSpec([], tf.int32)])
    def run(value, index):
        (result,) = stream.run(twice, [value], [tf.float32])
        behind = tf.numpy_function(later, [index], tf.int32, stateful=False)
        return result, tf.gather(value, behind)

    may_end.set()
    np.testing.assert_array_equal(run(tf.ones([3]), 0)[0], [2.0] * 3)
    may_end.clear()
    has_begun.clear()
    with pytest.raises(tf.errors.InvalidArgumentError, match="indices = 9"):
        run(tf.fill([2], -1.0), 9)
    may_end.set()
    for _ in range(3):
        with pytest.raises(tf.errors.InvalidArgumentError, match="Restart the job"):
            run(tf.ones([3]), 0)


@pytest.mark.parametrize("has_thread", [False, True])
def test_operations_run_in_the_order_of_the_program(has_thread):
    stream, ran = Stream(has_thread), []

    def times(factor):
        def operation(arrays, moment):
            ran.append((factor, moment))
            return [factor * array for array in arrays]

        return operation

    @tf.function(input_signature=[tf.TensorSpec(None), tf.TensorSpec([], tf.int32)])
    def run(value, count):
        # The results of the first are not needed for the second.
        results = [stream.run(times(factor), [value], [tf.float32])[0] for factor in (2, 3)]
        for _ in tf.range(count):
            (value,) = stream.run(times(5), [value], [tf.float32])
        if count > 1:
            (value,) = stream.run(times(7), [value], [tf.float32])
        return tf.add_n([*results, value])

    value = tf.constant([1.0, 2.0])
    np.testing.assert_array_equal(run(value, tf.constant(2)), [180.0, 360.0])
    np.testing.assert_array_equal(run(value, tf.constant(1)), [10.0, 20.0])
    np.testing.assert_array_equal(stream.run(times(11), [value], [tf.float32])[0], [11.0, 22.0])
    assert [factor for factor, _ in ran] == [2, 3, 5, 5, 7, 2, 3, 5, 11]
    moments = [moment for _, moment in ran]
    assert len(set(moments[:2] + moments[5:7])) == 2, moments
    assert moments[0] == moments[1] != moments[5] == moments[6]


@pytest.mark.parametrize("has_thread", [False, True])
def test_what_an_operation_raises_is_raised_where_its_result_is_taken(has_thread):
    stream = Stream(has_thread)

    def fail(arrays, moment):
        raise ValueError(f"Received: {arrays[0].tolist()}")

    function = tf.function(lambda value: stream.run(fail, [value], [tf.float32, tf.int32])[0])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Received: \[3\.0\]") as raised:
        function(tf.constant([3.0]))
    assert "Traceback" not in str(raised.value)


def test_an_operation_without_a_thread_runs_in_the_thread_that_reaches_it():
    """So it costs no more than a call; two such streams would wait for each other."""
    names = []

    def note(arrays, moment):
        names.append(threading.current_thread().name)
        return [np.zeros([], np.float32)]

    for has_thread in (False, True):
        stream = Stream(has_thread)
        tf.function(lambda stream=stream: stream.run(note, [], [tf.float32])[0])()
    assert [name == "collectives" for name in names] == [False, True]


def _function_graph(build):
    return tf.function(build).get_concrete_function().graph


def _graph(build):
    with tf.Graph().as_default() as graph:
        build()
    return graph


@pytest.mark.parametrize("build_graph", [_function_graph, _graph])
def test_a_stream_deleted_while_a_graph_is_built_adds_nothing_to_it(build_graph):
    """The garbage collector deletes objects at any place of a program."""
    before = threading.enumerate()
    streams = [Stream()]
    tf.function(lambda: streams[0].run(lambda *_: [np.ones(1, np.float32)], [], [tf.float32])[0])()
    gc.collect()
    assert [thread.name for thread in threading.enumerate() if thread not in before] == [
        "collectives"
    ]

    def delete():
        streams.clear()
        gc.collect()

    assert [operation.name for operation in build_graph(delete).get_operations()] == []
    assert [thread.name for thread in threading.enumerate() if thread not in before] == []


@pytest.mark.processes
def test_an_operation_that_does_not_end_does_not_keep_python_from_ending():
    code = """
import threading
import tensorflow as tf
from strategies.collectives.shared_memory.stream import Stream
stream = Stream()
@tf.function
def run(value):
    result = stream.run(lambda arrays, moment: time.sleep(600) or arrays, [value], [tf.float32])
    return result, tf.gather(value, tf.size(value) + 8)
run(tf.constant([1.0]))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "indices = 9" in ended.stderr
