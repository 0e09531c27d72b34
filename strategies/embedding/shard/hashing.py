"""Hashes of ids and pseudorandom numbers from TensorFlow operations.

The mixing function is that of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom
number generators", 2014). It is counter-based: numbers are computed independently.
"""

from __future__ import annotations

import hashlib

import tensorflow as tf

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def splitmix64(values: tf.Tensor) -> tf.Tensor:
    """Returns the SplitMix64 hashes of int64 values, int64.

    >>> splitmix64(tf.constant([_GOLDEN - 2**64], tf.int64)).numpy().tolist()
    [-2152535657050944081]
    """
    values = (values ^ _shift_right(values, 30)) * _to_signed(_FIRST)
    values = (values ^ _shift_right(values, 27)) * _to_signed(_SECOND)
    return values ^ _shift_right(values, 31)


def uniform(ids: tf.Tensor, key: int, width: int) -> tf.Tensor:
    """Returns uniform numbers between 0 and 1, both excluded, for each id, float32 [n, width].

    Args:
      ids: ids, int64 [n].
      key: key of the sequence.
      width: number of values for each id.
    """
    stream = splitmix64(splitmix64(ids + _to_signed(_GOLDEN)) ^ _to_signed(key))
    counters = tf.range(1, width + 1, dtype=tf.int64) * _to_signed(_GOLDEN)
    bits = splitmix64(stream[:, tf.newaxis] + counters)
    # 23 bits and an offset of one half exclude both 0 and 1.
    return (tf.cast(_shift_right(bits, 41), tf.float32) + 0.5) * 2.0**-23


def shard_of(ids: tf.Tensor, num_shards: int) -> tf.Tensor:
    """Returns the index of the shard that owns each id, int64, the same on all workers."""
    return _shift_right(splitmix64(ids + _to_signed(_GOLDEN)), 1) % num_shards


def key_of(seed: int, name: str) -> int:
    """Returns a 64-bit key for a seed and a name.

    >>> key_of(0, "users") == key_of(0, "users"), key_of(0, "users") == key_of(1, "users")
    (True, False)
    """
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "big")


def _shift_right(values: tf.Tensor, bits: int) -> tf.Tensor:
    """Returns the values after a logical right shift."""
    unsigned = tf.bitcast(values, tf.uint64)
    return tf.bitcast(tf.bitwise.right_shift(unsigned, tf.constant(bits, tf.uint64)), tf.int64)


def _to_signed(value: int) -> tf.Tensor:
    return tf.constant(value - 2**64 if value >= 2**63 else value, tf.int64)
