"""One shard of a table: its ids with rows, and the lifetime of a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from strategies.compat.tensorflow import ResourceVariable
from strategies.embedding.config import TableConfig
from strategies.embedding.shard.admission import make_counter
from strategies.embedding.shard.capacity import Overflow
from strategies.embedding.shard.id_map import IdMap
from strategies.embedding.shard.row_store import RowStore
from strategies.utils.devices import HOST

# Counted events, in the order of `Table.counts`.
STATISTICS = ("lookups", "unique", "new", "refused", "evicted", "shared")


class LookupState(NamedTuple):
    """Unique ids of a lookup in training, and their rows.

    Attributes:
      ids: unique ids, int64 [n].
      counts: number of occurrences of each id.
      rows: rows of the ids; -1 for ids without a row.
      missing: positions of the ids that have no row and may get one.
    """

    ids: tf.Tensor
    counts: tf.Tensor
    rows: tf.Tensor
    missing: tf.Tensor


class Table:
    """One shard of a table: the ids that it owns and their rows in a store.

    Args:
      config: configuration of the table.
      store: store of the rows of the group's tables.
      initial: function from ids to their initial rows.
      capacity: maximum number of ids with a row in this shard if further ids share a row; None if
        they do not.
    """

    def __init__(
        self,
        config: TableConfig,
        store: RowStore,
        initial: Callable[[tf.Tensor], tf.Tensor],
        capacity: int | None,
    ):
        self.config = config
        self.store = store
        self.initial = initial
        self.map = IdMap()
        self.overflow: Overflow | None = None
        if capacity is not None and config.input_dim is not None:
            self.overflow = Overflow(config.name, config.input_dim, capacity, self.map, store)
        admission = config.admission
        self.counter = None if admission is None else make_counter(admission)
        self._admitted_at = 1 if admission is None else admission.count
        with tf.init_scope(), tf.device(HOST):
            self.counts = ResourceVariable(tf.zeros([len(STATISTICS)], tf.int64), trainable=False)

    def find(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the rows of ids; -1 for ids without a row."""
        rows = self.map.find(ids)
        return rows if self.overflow is None else self.overflow.or_shared(rows)

    def shared_row(self) -> tf.Tensor:
        """Returns the row that further ids share, int64 [1], or int64 [0] if none share it yet."""
        return tf.zeros([0], tf.int64) if self.overflow is None else self.overflow.row_if_full()

    def look_up(self, ids: tf.Tensor, counts: tf.Tensor) -> LookupState:
        """Looks up and counts ids in training.

        Args:
          ids: distinct ids, int64 [n].
          counts: number of occurrences of each id.
        """
        rows = self.map.find(ids)
        missing = tf.where(rows < 0)[:, 0]
        if self.overflow is not None:
            # If no capacity is left, ids are not counted for admission; counts would keep growing.
            missing = missing[: tf.where(self.overflow.remaining() > 0, tf.size(missing), 0)]
        self.add_counts(lookups=tf.reduce_sum(counts), unique=tf.math.count_nonzero(counts))
        return LookupState(ids, counts, rows, missing)

    def admit(self, state: LookupState) -> tf.Tensor:
        """Counts the missing ids; returns the positions of those to insert now, int64."""
        # Ids are counted before the capacity is checked: an id that has occurred often enough when
        # no capacity is left keeps its count, and gets a row as soon as there is capacity again.
        positions = state.missing
        if self.counter is not None:
            ids = tf.gather(state.ids, positions)
            totals = self.counter.increment(ids, tf.gather(state.counts, positions))
            positions = tf.gather(positions, tf.where(totals >= self._admitted_at)[:, 0])
            refused = tf.size(ids, tf.int64) - tf.size(positions, tf.int64)
            self.add_counts(refused=refused)
        if self.overflow is not None:
            positions = positions[: self.overflow.remaining()]
        if self.counter is not None:
            self.counter.forget(tf.gather(state.ids, positions))
        return positions

    def insert(self, state: LookupState, positions: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        """Inserts the ids at `positions` with new rows; returns the rows of all ids."""
        self.map.insert(tf.gather(state.ids, positions), rows)
        self.add_counts(new=tf.size(rows, tf.int64))
        return tf.tensor_scatter_nd_update(state.rows, positions[:, tf.newaxis], rows)

    def share_row(self, rows: tf.Tensor) -> tf.Tensor:
        """Replaces -1 by the shared row if no capacity is left, and counts these ids."""
        if self.overflow is None:
            return rows
        shared = self.overflow.or_shared(rows)
        self.add_counts(shared=tf.math.count_nonzero(shared != rows))
        return shared

    def remove(self, ids: tf.Tensor, rows: tf.Tensor) -> None:
        """Removes ids and frees their rows."""
        self.map.remove(ids)
        self.store.free(rows)

    def counter_bytes(self) -> tf.Tensor:
        """Returns the size in bytes of the counts of ids without a row, int64."""
        return tf.constant(0, tf.int64) if self.counter is None else self.counter.bytes()

    def add_counts(self, **numbers: tf.Tensor) -> None:
        """Adds to the counts of events, named as in `STATISTICS`."""
        added = [numbers.get(name, tf.constant(0, tf.int64)) for name in STATISTICS]
        with tf.device(HOST):
            self.counts.assign_add(tf.stack(added), read_value=False)
