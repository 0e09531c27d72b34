"""The mixing function of SplitMix64, as a TensorFlow operation.

It is that of Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
"""

from __future__ import annotations

import tensorflow as tf

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def to_signed(value: int) -> int:
    """Returns the int64 with the bits of an unsigned number of 64 bits.

    >>> to_signed(2**64 - 1)
    -1
    """
    return value - 2**64 if value >= 2**63 else value


# The distance of two counters.
GOLDEN = to_signed(_GOLDEN)


def splitmix64(values: tf.Tensor) -> tf.Tensor:
    """Returns the SplitMix64 hashes of int64 values, int64.

    >>> splitmix64(tf.constant([GOLDEN], tf.int64)).numpy().tolist()
    [-2152535657050944081]
    """
    values = (values ^ shift_right(values, 30)) * to_signed(_FIRST)
    values = (values ^ shift_right(values, 27)) * to_signed(_SECOND)
    return values ^ shift_right(values, 31)


def shift_right(values: tf.Tensor, bits: int) -> tf.Tensor:
    """Returns int64 values after a logical right shift."""
    unsigned = tf.bitcast(values, tf.uint64)
    return tf.bitcast(tf.bitwise.right_shift(unsigned, tf.constant(bits, tf.uint64)), tf.int64)
