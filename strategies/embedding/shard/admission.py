"""How often ids came that have no row yet."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import tensorflow as tf

from strategies._tensorflow import ResourceVariable
from strategies.embedding.config import Admission
from strategies.embedding.shard.hashing import splitmix64
from strategies.embedding.shard.id_map import IdMap
from strategies.variables.growable_array import HOST
from tf_config.capacity import MAP_ENTRY

_DEPTH = 4


class Counter(Protocol):
    """Counts ids, int64 [n], each named once in a call."""

    def added(self, ids: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
        """Adds to the ids' counts and returns them."""

    def forget(self, ids: tf.Tensor) -> None:
        """Takes back what is counted for ids, as far as that can be."""

    def clear(self) -> None:
        """Takes back what is counted for all ids."""

    def bytes(self) -> tf.Tensor:
        """Returns how many bytes it holds, int64."""


def counter_of(admission: Admission) -> Counter:
    """Returns what counts as `admission` says."""
    return ExactCounter() if admission.memory is None else SketchCounter(admission.memory)


class ExactCounter:
    """A number for each id.

    >>> counter = ExactCounter()
    >>> ids = tf.constant([-1, 5], tf.int64)
    >>> _ = counter.added(ids, tf.constant([1, 2], tf.int64))
    >>> counter.added(ids, tf.constant([1, 1], tf.int64)).numpy().tolist()
    [2, 3]
    """

    def __init__(self) -> None:
        self.map = IdMap()

    def added(self, ids: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
        """Adds to the ids' counts and returns them."""
        totals = tf.maximum(self.map.find(ids), 0) + counts
        self.map.insert(ids, totals)
        return totals

    def forget(self, ids: tf.Tensor) -> None:
        """Takes the ids' numbers away."""
        self.map.remove(ids)

    def clear(self) -> None:
        """Takes the numbers of all ids away."""
        self.map.remove(self.map.all()[0])

    def bytes(self) -> tf.Tensor:
        """Returns how many bytes it holds, int64."""
        return self.map.size() * MAP_ENTRY


class SketchCounter:
    """A count-min sketch: four rows of numbers, an id's count is the least of its four.

    Args:
      memory: bytes, on each worker.
    """

    def __init__(self, memory: int):
        self._width = memory // (4 * _DEPTH)
        with tf.init_scope(), tf.device(HOST):
            self.table = ResourceVariable(
                tf.zeros([_DEPTH * self._width], tf.int32), trainable=False
            )
            # Of a restored sum, what the first place has; nothing until then.
            self._of_others = ResourceVariable(
                tf.zeros([0], tf.int32), trainable=False, shape=[None]
            )

    def own(self) -> tf.Tensor:
        """Returns what was counted here, to be added up over all places."""
        table, others = self.table.read_value(), self._of_others.read_value()
        return tf.cond(tf.size(others) > 0, lambda: table - others, lambda: table)

    def check(self, total: np.ndarray) -> None:
        """Checks that numbers may be restored here.

        Raises:
          ValueError: if they are of another memory.
        """
        if total.shape != tuple(self.table.shape):
            raise ValueError(
                "A sketch is restored with the memory that it was saved with. Received: "
                f"{total.nbytes} bytes, for {4 * self.table.shape[0]}."
            )

    def restore(self, total: tf.Tensor, is_first: bool) -> None:
        """Sets the numbers to a sum over places, which the first one adds to later sums."""
        self.table.assign(total)
        self._of_others.assign(tf.zeros([0], tf.int32) if is_first else total)

    def added(self, ids: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
        """Adds to the ids' counts and returns them, or more than they are."""
        places = self._places(ids)
        with tf.device(HOST):
            self.table.scatter_add(
                tf.IndexedSlices(
                    tf.repeat(tf.cast(counts, tf.int32), _DEPTH), tf.reshape(places, [-1])
                )
            )
            found = self.table.sparse_read(places)
        return tf.cast(tf.reduce_min(found, 1), tf.int64)

    def forget(self, ids: tf.Tensor) -> None:
        """Does nothing: other ids may have the same numbers."""

    def clear(self) -> None:
        """Sets all numbers to 0."""
        self.restore(tf.zeros_like(self.table.read_value()), is_first=True)

    def bytes(self) -> tf.Tensor:
        """Returns how many bytes it holds, int64."""
        return tf.constant(4 * _DEPTH * self._width, tf.int64)

    def _places(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns where each id's numbers are, [n, 4]."""
        rows = tf.range(_DEPTH, dtype=tf.int64)
        mixture = splitmix64(splitmix64(ids)[:, tf.newaxis] ^ (rows + 1))
        return tf.math.floormod(mixture, self._width) + rows * self._width
