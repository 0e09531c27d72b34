"""Rows and gradients as they are exchanged."""

import numpy as np
import pytest
import tensorflow as tf

from strategies.reduction.row_wire import RowWire


@pytest.mark.parametrize("extra", [0, 1, 2])
@pytest.mark.parametrize("width", [1, 2, 5, 8])
@pytest.mark.parametrize("count", [0, 3])
def test_16_bits_hold_rounded_rows_and_exact_factors(width, extra, count):
    values = np.random.default_rng(0).normal(size=[count, width + extra]).astype("float32")
    wire = RowWire(width, "bfloat16")
    sent = wire.encode(tf.constant(values))
    assert sent.dtype == wire.dtype == tf.int32
    assert sent.shape.as_list() == [count, -(-(width + 2 * extra) // 2)]
    expected = values.copy()
    expected[:, :width] = tf.cast(tf.cast(values[:, :width], tf.bfloat16), tf.float32)
    received = wire.decode(sent, width + extra).numpy()
    np.testing.assert_array_equal(received, expected)
    np.testing.assert_array_equal(wire.decode_array(sent.numpy(), width + extra), expected)


def test_32_bits_are_sent_as_they_are():
    values = tf.constant([[0.1, 0.2]])
    wire = RowWire(2)
    assert wire.encode(values) is values and wire.decode(values, 2) is values
    assert wire.dtype == tf.float32


def test_an_unknown_number_of_rows_keeps_the_columns():
    wire = RowWire(5, "bfloat16")

    @tf.function(input_signature=[tf.TensorSpec([None, 6], tf.float32)])
    def there_and_back(values):
        received = wire.decode(wire.encode(values), 6)
        assert received.shape.as_list() == [None, 6]
        return received

    assert there_and_back(tf.ones([3, 6])).numpy().tolist() == [[1.0] * 6] * 3
