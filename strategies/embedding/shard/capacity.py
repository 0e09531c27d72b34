"""Capacity of tables whose ids share a row where `input_dim` others have one.

Each worker has its share of `input_dim` and a shared row of its own, so that no worker has to ask
the others whether there is capacity left. The row begins with zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from strategies._tensorflow import ResourceVariable
from strategies.collectives import Collectives
from strategies.collectives.single_worker import in_single_worker_scope
from strategies.embedding.shard.id_map import IdMap
from strategies.embedding.shard.row_store import RowStore
from strategies.variables.growable_array import HOST


class Overflow:
    """Capacity of one shard of a table, and the row that its ids share beyond it.

    Args:
      table: name of the table.
      total: capacity of all shards together.
      capacity: number of ids that may have rows in this shard.
      ids: those that have rows in this shard.
      store: holds the shared row.
    """

    def __init__(self, table: str, total: int, capacity: int, ids: IdMap, store: RowStore):
        self._table = table
        self._total = total
        self._ids = ids
        self._store = store
        with tf.init_scope(), tf.device(HOST):
            self._capacity = ResourceVariable(tf.constant(capacity, tf.int64), trainable=False)
            self._row = ResourceVariable(tf.zeros([1], tf.int64), trainable=False)
        self.allocate_row()

    def allocate_row(self) -> None:
        """Allocates the shared row in the store, for a new table or after the store is cleared."""
        with tf.init_scope():
            row = self._store.allocate(tf.constant(1, tf.int64))
            self._row.assign(row)
            self._store.variable.table.update(row, tf.zeros([1, self._store.width]))

    def row(self) -> tf.Tensor:
        """Returns the number of the shared row, int64 [1]."""
        with tf.device(HOST):
            return self._row.read_value()

    def row_if_full(self) -> tf.Tensor:
        """Returns the number of the shared row where no capacity is left, int64 [1] or [0]."""
        return self.row()[: tf.cast(self.remaining() <= 0, tf.int32)]

    def or_shared(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns rows, with the shared row in place of -1 where no capacity is left."""
        shared = tf.where(rows < 0, self.row(), rows)
        return tf.where(self.remaining() > 0, rows, shared)

    def remaining(self) -> tf.Tensor:
        """Returns the number of further ids that may have rows in this shard, int64."""
        with tf.device(HOST):
            return self._capacity.read_value() - self._ids.size()

    def rebalance(self, collectives: Collectives) -> None:
        """Sets the capacities of all workers' shards from the number of ids in each.

        Raises:
          ValueError: if there are more ids than the table may have.
        """
        with tf.init_scope():
            sizes = collectives.all_gather(self._ids.size()[tf.newaxis]).numpy().tolist()
        if sum(sizes) > self._total:
            raise ValueError(
                f"The table {self._table!r} has at most input_dim ids. Received: rows of "
                f"{sum(sizes)} ids for input_dim={self._total}. Raise it, or leave some of them "
                "out."
            )
        with tf.init_scope():
            self._capacity.assign(split_capacity(self._total, sizes)[collectives.rank])


def rebalance(overflows: Sequence[Overflow], collectives: Collectives) -> None:
    """Shares out the capacity of tables between the workers, after rows were set or restored.

    Rows of other workers may have come to one that now has more ids than its share; the others'
    shares become smaller by as many. All workers call it.

    Raises:
      ValueError: if there are more ids than a table may have.
    """
    if collectives.size > 1 and in_single_worker_scope():
        return  # it looks up, and the others do not know of it
    for overflow in overflows:
        overflow.rebalance(collectives)


def split_capacity(total: int, sizes: Sequence[int]) -> list[int]:
    """Returns the capacity of each shard: as even as can be, and no less than the shard's size.

    >>> split_capacity(7, [0, 0])
    [4, 3]
    >>> split_capacity(9, [6, 0, 2])
    [6, 1, 2]

    Args:
      total: capacity of all shards together, no less than the sum of the sizes.
      sizes: number of ids that have rows in each shard.
    """
    capacities = dict(enumerate(sizes))
    others, left = list(capacities), total
    while True:
        each, more = divmod(left, len(others))
        even = {shard: each + (position < more) for position, shard in enumerate(others)}
        full = [shard for shard in others if sizes[shard] > even[shard]]
        if not full:
            return list({**capacities, **even}.values())
        left -= sum(sizes[shard] for shard in full)
        others = [shard for shard in others if shard not in full]
