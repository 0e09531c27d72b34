"""The row that ids share which come when a table is full."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from strategies._tensorflow import ResourceVariable
from strategies.embedding.shard.row_store import RowStore
from strategies.variables.growable_array import HOST


class Overflow:
    """One worker's part of a table's bound, and the row that its ids share beyond it.

    Each worker has its part of `input_dim` and a row of its own, so that no worker has to ask the
    others whether there is room. The row begins with zeros.

    Args:
      store: where the row is.
      most: how many ids may have rows here.
    """

    def __init__(self, store: RowStore, most: int):
        self._store = store
        with tf.init_scope(), tf.device(HOST):
            self._most = ResourceVariable(tf.constant(most, tf.int64), trainable=False)
            self._row = ResourceVariable(tf.zeros([1], tf.int64), trainable=False)
        self.open()

    def open(self) -> None:
        """Takes a row of the store, which has none of this any more."""
        with tf.init_scope():
            row = self._store.allocated(tf.constant(1, tf.int64))
            self._row.assign(row)
            self._store.variable.table.update(row, tf.zeros([1, self._store.width]))

    def most(self) -> tf.Tensor:
        """Returns how many ids may have rows here, int64."""
        with tf.device(HOST):
            return self._most.read_value()

    def set_most(self, most: int) -> None:
        """Sets how many ids may have rows here."""
        with tf.init_scope():
            self._most.assign(most)

    def row(self) -> tf.Tensor:
        """Returns the row's number, int64 [1]."""
        with tf.device(HOST):
            return self._row.read_value()

    def shared(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns rows, with this one's number where there is -1."""
        return tf.where(rows < 0, self.row(), rows)


def parts_of(most: int, held: Sequence[int]) -> list[int]:
    """Returns each worker's part of a bound: as even as can be, and no less than it holds.

    >>> parts_of(7, [0, 0])
    [4, 3]
    >>> parts_of(9, [6, 0, 2])
    [6, 1, 2]

    Args:
      most: the bound, no less than all of them hold.
      held: how many ids have rows in each worker.
    """
    parts = dict(enumerate(held))
    others, left = list(parts), most
    while True:
        each, more = divmod(left, len(others))
        even = {rank: each + (place < more) for place, rank in enumerate(others)}
        full = [rank for rank in others if held[rank] > even[rank]]
        if not full:
            return list({**parts, **even}.values())
        left -= sum(held[rank] for rank in full)
        others = [rank for rank in others if rank not in full]
