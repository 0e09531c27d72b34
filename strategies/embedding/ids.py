"""Which row an id has: any int64, found and added by TensorFlow's own hash table."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from strategies.row_array import HOST

_BEYOND = (
    "Ids are int64: a larger one would become another, negative one. Received: a uint64 id of "
    "2**63 or more. Pass ids.view(np.int64), or tf.bitcast(ids, tf.int64), if that is right."
)


def int64_tensor(ids: tf.Tensor) -> tf.Tensor:
    """Returns integers as int64.

    Raises:
      ValueError: if one has no place there; in a graph it is an InvalidArgumentError.
    """
    result = tf.cast(ids, tf.int64)
    if ids.dtype != tf.uint64:
        return result
    is_fit = tf.reduce_all(result >= 0)
    if tf.executing_eagerly():
        if not is_fit:
            raise ValueError(_BEYOND)
        return result
    with tf.control_dependencies([tf.debugging.Assert(is_fit, [_BEYOND])]):
        return tf.identity(result)


def int64_array(ids: Any) -> np.ndarray:
    """Returns integers as a NumPy array of int64.

    >>> int64_array(np.array([1, 2], np.uint64))
    array([1, 2])

    Raises:
      ValueError: if they are no integers, or one has no place in int64.
    """
    ids = np.asarray(ids)
    if ids.size and ids.dtype.kind not in "iu":
        raise ValueError(f"Ids are integers. Received: {ids.dtype}. Convert them first.")
    if ids.dtype == np.uint64 and (ids >= 2**63).any():
        raise ValueError(_BEYOND)
    return ids.astype(np.int64)


class IdMap:
    """A map from ids to numbers, both int64; an id that it does not have is -1."""

    def __init__(self) -> None:
        with tf.init_scope(), tf.device(HOST):
            # Of TensorFlow's tables the one that has no key for itself.
            self._table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)

    def find(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the ids' numbers."""
        with tf.device(HOST):
            return tf.ensure_shape(self._table.lookup(ids), ids.shape)

    def insert(self, ids: tf.Tensor, numbers: tf.Tensor) -> None:
        """Sets the ids' numbers."""
        with tf.device(HOST):
            self._table.insert(ids, numbers)

    def remove(self, ids: tf.Tensor) -> None:
        """Forgets ids."""
        with tf.device(HOST):
            self._table.remove(ids)

    def all(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns all ids and their numbers, in no order."""
        with tf.device(HOST):
            ids, numbers = self._table.export()
            return tf.ensure_shape(ids, [None]), tf.ensure_shape(numbers, [None])

    def size(self) -> tf.Tensor:
        """Returns how many ids there are, int64."""
        with tf.device(HOST):
            return self._table.size()
