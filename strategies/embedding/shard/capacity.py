"""Capacity of the shards of tables with `overflow="share"` or `overflow="evict"`.

Each worker or server has a part of `input_dim`, so it need not ask the others for the remaining
capacity. If ids beyond it share a row, each worker has its own shared row, which is initialized to
zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from strategies.compat.tensorflow import ResourceVariable
from strategies.embedding.shard.id_map import IdMap
from strategies.embedding.shard.row_store import RowStore
from strategies.utils.devices import HOST

# A full shard that evicts rows frees one in so many of them at once, because selecting them reads
# the metadata of all rows.
_BATCHES = 64


class Capacity:
    """Capacity of one shard of a table.

    Args:
      capacity: maximum number of ids with a row in this shard.
      ids: map of the ids with a row in this shard.
    """

    def __init__(self, capacity: int, ids: IdMap):
        self._ids = ids
        with tf.init_scope(), tf.device(HOST):
            self._capacity = ResourceVariable(tf.constant(capacity, tf.int64), trainable=False)

    def remaining(self) -> tf.Tensor:
        """Returns the number of further ids that may get a row in this shard, int64."""
        with tf.device(HOST):
            return self._capacity.read_value() - self._ids.size()

    def batch(self) -> tf.Tensor:
        """Returns the number of rows that are evicted at once, int64."""
        with tf.device(HOST):
            return self._capacity.read_value() // _BATCHES

    def set(self, capacity: tf.Tensor) -> None:
        """Sets the maximum number of ids with a row in this shard."""
        self._capacity.assign(capacity)


class Overflow(Capacity):
    """Capacity of one shard of a table, and the row that further ids share.

    Args:
      capacity: maximum number of ids with a row in this shard.
      ids: map of the ids with a row in this shard.
      store: store of the shared row.
    """

    def __init__(self, capacity: int, ids: IdMap, store: RowStore):
        super().__init__(capacity, ids)
        self._store = store
        with tf.init_scope(), tf.device(HOST):
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
