"""Counters of the ids without a row, for admission rules."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import tensorflow as tf

from strategies.compat.tensorflow import ResourceVariable
from strategies.embedding.config import Admission
from strategies.embedding.shard.id_map import IdMap
from strategies.utils.devices import HOST
from strategies.utils.splitmix64 import splitmix64
from tf_config.capacity import MAP_ENTRY

_DEPTH = 4


class Counter(Protocol):
    """Counter of the occurrences of ids, int64 [n], distinct within a call."""

    def increment(self, ids: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
        """Adds to the counts of ids; returns the totals."""

    def forget(self, ids: tf.Tensor) -> None:
        """Removes the counts of ids if they are stored by id."""

    def clear(self) -> None:
        """Removes all counts."""

    def bytes(self) -> tf.Tensor:
        """Returns the memory in use in bytes, int64."""


def make_counter(admission: Admission) -> Counter:
    """Creates the counter that an admission rule configures."""
    return ExactCounter() if admission.memory is None else SketchCounter(admission.memory)


class ExactCounter:
    """Exact counter, which stores one number for each id.

    >>> counter = ExactCounter()
    >>> ids = tf.constant([-1, 5], tf.int64)
    >>> _ = counter.increment(ids, tf.constant([1, 2], tf.int64))
    >>> counter.increment(ids, tf.constant([1, 1], tf.int64)).numpy().tolist()
    [2, 3]
    """

    def __init__(self) -> None:
        self.map = IdMap()

    def increment(self, ids: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
        """Adds to the counts of ids; returns the totals."""
        totals = tf.maximum(self.map.find(ids), 0) + counts
        self.map.insert(ids, totals)
        return totals

    def forget(self, ids: tf.Tensor) -> None:
        """Removes the counts of ids."""
        self.map.remove(ids)

    def clear(self) -> None:
        """Removes all counts."""
        self.map.remove(self.map.all()[0])

    def bytes(self) -> tf.Tensor:
        """Returns the memory in use in bytes, int64."""
        return self.map.size() * MAP_ENTRY


class SketchCounter:
    """Count-min sketch: four rows of cells; an id's count is the minimum of its four cells.

    Args:
      memory: size of the sketch in bytes, on each worker.
    """

    def __init__(self, memory: int):
        self._width = memory // (4 * _DEPTH)
        with tf.init_scope(), tf.device(HOST):
            self.table = ResourceVariable(
                tf.zeros([_DEPTH * self._width], tf.int32), trainable=False
            )
            # A restored sum that only the first shard adds to `local_counts`; empty if none.
            self._counted_elsewhere = ResourceVariable(
                tf.zeros([0], tf.int32), trainable=False, shape=[None]
            )

    def local_counts(self) -> tf.Tensor:
        """Returns the cells of this shard, to be summed over all shards."""
        table, others = self.table.read_value(), self._counted_elsewhere.read_value()
        return tf.cond(tf.size(others) > 0, lambda: table - others, lambda: table)

    def check(self, total: np.ndarray) -> None:
        """Raises ValueError if restored cells are those of a sketch of another size."""
        if total.shape != tuple(self.table.shape):
            raise ValueError(
                "A sketch must be restored with the memory that it was saved with. Received: "
                f"{total.nbytes} bytes, for a sketch of {4 * self.table.shape[0]} bytes. Use the "
                "same Admission(memory=...) as when it was saved."
            )

    def restore(self, total: tf.Tensor, is_first: bool) -> None:
        """Restores the sum over all shards; in later sums, only the first shard includes it."""
        self.table.assign(total)
        self._counted_elsewhere.assign(tf.zeros([0], tf.int32) if is_first else total)

    def increment(self, ids: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
        """Adds to the counts of ids; returns upper bounds of the totals."""
        cells = self._cells(ids)
        with tf.device(HOST):
            self.table.scatter_add(
                tf.IndexedSlices(
                    tf.repeat(tf.cast(counts, tf.int32), _DEPTH), tf.reshape(cells, [-1])
                )
            )
            numbers = self.table.sparse_read(cells)
        return tf.cast(tf.reduce_min(numbers, 1), tf.int64)

    def forget(self, ids: tf.Tensor) -> None:
        """Does nothing: other ids may share the same cells."""

    def clear(self) -> None:
        """Removes all counts."""
        self.restore(tf.zeros_like(self.table.read_value()), is_first=True)

    def bytes(self) -> tf.Tensor:
        """Returns the memory in use in bytes, int64."""
        return tf.constant(4 * _DEPTH * self._width, tf.int64)

    def _cells(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the positions of each id's cells, [n, 4]."""
        rows = tf.range(_DEPTH, dtype=tf.int64)
        mixture = splitmix64(splitmix64(ids)[:, tf.newaxis] ^ (rows + 1))
        return tf.math.floormod(mixture, self._width) + rows * self._width
