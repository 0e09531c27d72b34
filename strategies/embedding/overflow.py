"""The row that ids share which come when a table is full."""

from __future__ import annotations

import tensorflow as tf

from strategies._tensorflow import ResourceVariable
from strategies.embedding.store import RowStore
from strategies.row_array import HOST


class Overflow:
    """One worker's part of a table's bound, and the row that its ids share beyond it.

    Each worker has its part of `input_dim` and a row of its own, so that no worker has to ask the
    others whether there is room. The row begins with zeros.

    Args:
      store: where the row is.
      most: how many ids may have rows, on all workers.
      rank: which worker it is.
      size: how many workers there are.
    """

    def __init__(self, store: RowStore, most: int, rank: int, size: int):
        self.most = tf.constant(most // size + (rank < most % size), tf.int64)
        self._store = store
        with tf.init_scope(), tf.device(HOST):
            self._row = ResourceVariable(tf.zeros([1], tf.int64), trainable=False)
        self.open()

    def open(self) -> None:
        """Takes a row of the store, which has none of this any more."""
        with tf.init_scope():
            row = self._store.allocated(tf.constant(1, tf.int64))
            self._row.assign(row)
            self._store.variable.table.update(row, tf.zeros([1, self._store.width]))

    def row(self) -> tf.Tensor:
        """Returns the row's number, int64 [1]."""
        with tf.device(HOST):
            return self._row.read_value()

    def shared(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns rows, with this one's number where there is -1."""
        return tf.where(rows < 0, self.row(), rows)
