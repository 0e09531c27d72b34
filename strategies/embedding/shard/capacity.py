"""Capacity of tables with `overflow="share"`, whose ids beyond `input_dim` share a row.

Each worker has a part of the capacity and its own shared row, so it need not ask the others for the
remaining capacity. The shared row is initialized to zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from strategies.collectives import Collectives
from strategies.collectives.single_worker import in_single_worker_scope
from strategies.compat.tensorflow import ResourceVariable
from strategies.embedding.shard.id_map import IdMap
from strategies.embedding.shard.row_store import RowStore
from strategies.utils.devices import HOST


class Overflow:
    """Capacity of one shard of a table, and the row that further ids share.

    Args:
      table: name of the table.
      total: capacity of all shards together.
      capacity: maximum number of ids with a row in this shard.
      ids: map of the ids with a row in this shard.
      store: store of the shared row.
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
        """Allocates the shared row, for a new table or after the store was cleared."""
        with tf.init_scope():
            row = self._store.allocate(tf.constant(1, tf.int64))
            self._row.assign(row)
            self._store.variable.table.update(row, tf.zeros([1, self._store.width]))

    def row(self) -> tf.Tensor:
        """Returns the number of the shared row, int64 [1]."""
        with tf.device(HOST):
            return self._row.read_value()

    def row_if_full(self) -> tf.Tensor:
        """Returns the number of the shared row, int64 [1]; int64 [0] if there is capacity left."""
        return self.row()[: tf.cast(self.remaining() <= 0, tf.int32)]

    def or_shared(self, rows: tf.Tensor) -> tf.Tensor:
        """Replaces -1 in `rows` by the shared row if no capacity is left."""
        shared = tf.where(rows < 0, self.row(), rows)
        return tf.where(self.remaining() > 0, rows, shared)

    def remaining(self) -> tf.Tensor:
        """Returns the number of further ids that may get a row in this shard, int64."""
        with tf.device(HOST):
            return self._capacity.read_value() - self._ids.size()

    def rebalance(self, collectives: Collectives) -> None:
        """Redistributes the capacity by the number of ids in each worker's shard.

        Raises:
          ValueError: if there are more ids than the table's `input_dim`.
        """
        with tf.init_scope():
            sizes = collectives.all_gather(self._ids.size()[tf.newaxis]).numpy().tolist()
        if sum(sizes) > self._total:
            raise ValueError(
                f"The table {self._table!r} cannot hold more than input_dim ids. Received: rows of "
                f"{sum(sizes)} ids for input_dim={self._total}. Raise input_dim, or omit some of "
                "the rows."
            )
        with tf.init_scope():
            self._capacity.assign(split_capacity(self._total, sizes)[collectives.rank])


def rebalance(overflows: Sequence[Overflow], collectives: Collectives) -> None:
    """Redistributes the capacity of tables over the workers, after rows were set or restored.

    A worker may then have more ids than its part of the capacity; the parts of the others shrink
    accordingly. All workers must call it.

    Raises:
      ValueError: if there are more ids than a table's `input_dim`.
    """
    if collectives.size > 1 and in_single_worker_scope():
        return  # the other workers do not take part
    for overflow in overflows:
        overflow.rebalance(collectives)


def split_capacity(total: int, sizes: Sequence[int]) -> list[int]:
    """Returns the capacity of each shard: as even as possible, and at least the shard's size.

    >>> split_capacity(7, [0, 0])
    [4, 3]
    >>> split_capacity(9, [6, 0, 2])
    [6, 1, 2]

    Args:
      total: capacity of all shards together, at least the sum of the sizes.
      sizes: number of ids with a row in each shard.
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
