"""Hashes of ids and pseudorandom numbers, which are counter-based: each is computed by itself."""

from __future__ import annotations

import hashlib

import tensorflow as tf

from strategies.utils.splitmix64 import GOLDEN, shift_right, splitmix64, to_signed


def uniform(ids: tf.Tensor, key: int, width: int) -> tf.Tensor:
    """Returns uniform numbers between 0 and 1, both excluded, for each id, float32 [n, width].

    Args:
      ids: ids, int64 [n].
      key: key of the sequence.
      width: number of values for each id.
    """
    stream = splitmix64(splitmix64(ids + GOLDEN) ^ to_signed(key))
    counters = tf.range(1, width + 1, dtype=tf.int64) * GOLDEN
    bits = splitmix64(stream[:, tf.newaxis] + counters)
    # 23 bits and an offset of one half exclude both 0 and 1.
    return (tf.cast(shift_right(bits, 41), tf.float32) + 0.5) * 2.0**-23


def shard_of(ids: tf.Tensor, num_shards: int) -> tf.Tensor:
    """Returns the index of the shard that owns each id, int64, the same on all workers."""
    return shift_right(splitmix64(ids + GOLDEN), 1) % num_shards


def key_of(seed: int, name: str) -> int:
    """Returns a 64-bit key for a seed and a name.

    >>> key_of(0, "users") == key_of(0, "users"), key_of(0, "users") == key_of(1, "users")
    (True, False)
    """
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "big")
