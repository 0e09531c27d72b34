"""The stream of operations behind shared memory, without other workers."""

import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

from strategies.collectives.shared_memory.stream import Stream


def twice_slowly(arrays):
    time.sleep(0.3)
    return [2 * array for array in arrays]


def test_a_function_that_failed_meanwhile_leaves_nothing_to_the_next_run():
    stream = Stream()

    @tf.function(input_signature=[tf.TensorSpec([None]), tf.TensorSpec([], tf.int32)])
    def run(value, index):
        (result,) = stream.run(twice_slowly, [value], [tf.float32])
        return result, tf.gather(value, index)

    for number in range(3):
        start = time.monotonic()
        with pytest.raises(tf.errors.InvalidArgumentError, match="indices = 9"):
            run(tf.fill([2], -1.0), 9)
        if number:
            assert time.monotonic() - start < 0.3, "the operation's end was waited for"
        found, _ = run(tf.fill([3], float(number)), 0)
        np.testing.assert_array_equal(found, [2.0 * number] * 3)


def test_what_an_operation_raises_is_raised_where_its_result_is_taken():
    def fail(arrays):
        raise ValueError(f"Received: {arrays[0].tolist()}")

    function = tf.function(lambda value: Stream().run(fail, [value], [tf.float32])[0])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Received: \[3\.0\]"):
        function(tf.constant([3.0]))


def test_an_operation_that_does_not_end_does_not_keep_python_from_ending():
    code = """
import time
import tensorflow as tf
from strategies.collectives.shared_memory.stream import Stream
stream = Stream()
@tf.function
def run(value):
    result = stream.run(lambda arrays: time.sleep(600) or arrays, [value], [tf.float32])
    return result, tf.gather(value, tf.size(value) + 8)
run(tf.constant([1.0]))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "indices = 9" in ended.stderr
