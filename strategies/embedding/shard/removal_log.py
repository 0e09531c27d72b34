"""Log of the ids whose rows were removed from one shard of a table."""

from __future__ import annotations

import tensorflow as tf

from strategies.compat.tensorflow import ResourceVariable
from strategies.embedding.shard.id_map import IdMap
from strategies.utils.devices import HOST


class RemovalLog:
    """The ids that an eviction removed, for files that contain only what has changed.

    Each reader remembers how many ids had been removed when it last read, so that any number of
    readers can share a log. It is empty until `begin` is called, and keeps no more ids than have a
    row: where more were removed, a list of the ids that are left is the shorter one.

    >>> ids = IdMap()
    >>> ids.insert(tf.range(5, dtype=tf.int64), tf.range(5, dtype=tf.int64))
    >>> log = RemovalLog(ids)
    >>> begun = log.begin()
    >>> for removed in ([4], [3]):
    ...     ids.remove(tf.constant(removed, tf.int64))
    ...     log.record(tf.constant(removed, tf.int64))
    >>> [each.numpy().tolist() for each in log.since(begun)]
    [[4, 3], True]

    Args:
      ids: map of the ids with a row in the shard.
    """

    def __init__(self, ids: IdMap):
        self._map = ids
        with tf.init_scope(), tf.device(HOST):
            self._ids = ResourceVariable(tf.zeros([0], tf.int64), trainable=False, shape=[None])
            self._count = ResourceVariable(tf.constant(0, tf.int64), trainable=False)
            self._is_kept = ResourceVariable(tf.constant(False), trainable=False)

    def begin(self) -> tf.Tensor:
        """Begins to keep ids, if necessary; returns how many were removed so far, int64."""
        with tf.device(HOST):
            self._is_kept.assign(True)
            return self._count.read_value()

    def record(self, ids: tf.Tensor) -> None:
        """Records ids that were just removed from the map."""
        with tf.device(HOST):
            self._count.assign_add(tf.size(ids, tf.int64))
            kept = tf.concat([self._ids.read_value(), ids], 0)
            limit = tf.where(self._is_kept.read_value(), self._map.size(), 0)
            self._ids.assign(kept[tf.maximum(tf.size(kept, tf.int64) - limit, 0) :])

    def since(self, count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the ids removed since there were `count` of them, and whether these are all.

        Ids that have a row again are left out. An id that was removed twice occurs twice.
        """
        with tf.device(HOST):
            kept = self._ids.read_value()
            newer = self._count.read_value() - count
            ids = kept[tf.maximum(tf.size(kept, tf.int64) - newer, 0) :]
            is_complete = newer <= tf.size(kept, tf.int64)
            return tf.boolean_mask(ids, self._map.find(ids) < 0), is_complete
