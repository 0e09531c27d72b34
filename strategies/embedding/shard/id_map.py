"""Map from ids to rows in a hash table of TensorFlow."""

from __future__ import annotations

import tensorflow as tf

from strategies.utils.devices import HOST


class IdMap:
    """Map from ids to numbers, both any int64; an absent id has the number -1."""

    def __init__(self) -> None:
        with tf.init_scope(), tf.device(HOST):
            # Unlike TensorFlow's dense hash table, it reserves no keys.
            self._table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)

    def find(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the numbers of ids."""
        with tf.device(HOST):
            return tf.ensure_shape(self._table.lookup(ids), ids.shape)

    def insert(self, ids: tf.Tensor, numbers: tf.Tensor) -> None:
        """Sets the numbers of ids."""
        with tf.device(HOST):
            self._table.insert(ids, numbers)

    def remove(self, ids: tf.Tensor) -> None:
        """Removes ids."""
        with tf.device(HOST):
            self._table.remove(ids)

    def all(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns all ids and their numbers, in no particular order."""
        with tf.device(HOST):
            ids, numbers = self._table.export()
            return tf.ensure_shape(ids, [None]), tf.ensure_shape(numbers, [None])

    def size(self) -> tf.Tensor:
        """Returns the number of ids, int64."""
        with tf.device(HOST):
            return self._table.size()
