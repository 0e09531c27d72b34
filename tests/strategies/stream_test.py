"""The stream of operations behind shared memory, without other workers."""

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
        with pytest.raises(tf.errors.InvalidArgumentError, match="Start the job again"):
            run(tf.ones([3]), 0)


def test_what_an_operation_raises_is_raised_where_its_result_is_taken():
    def fail(arrays, moment):
        raise ValueError(f"Received: {arrays[0].tolist()}")

    function = tf.function(lambda value: Stream().run(fail, [value], [tf.float32])[0])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Received: \[3\.0\]"):
        function(tf.constant([3.0]))


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
