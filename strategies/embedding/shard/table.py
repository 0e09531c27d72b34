"""One worker's part of a table: which of its ids have rows, and the life of a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from strategies._tensorflow import ResourceVariable
from strategies.embedding.config import TableConfig
from strategies.embedding.shard.admission import counter_of
from strategies.embedding.shard.id_map import IdMap
from strategies.embedding.shard.overflow import Overflow
from strategies.embedding.shard.row_store import RowStore
from strategies.variables.growable_array import HOST

# What `statistics` counts, in this order.
COUNTED = ("lookups", "unique", "new", "refused", "evicted", "shared")


class LookupState(NamedTuple):
    """Ids that came in training, each once.

    Attributes:
      ids: int64 [n].
      counts: how often each came.
      rows: of the ids, -1 for those that have none.
      missing: the positions of ids that have no row and may get one.
    """

    ids: tf.Tensor
    counts: tf.Tensor
    rows: tf.Tensor
    missing: tf.Tensor


class Table:
    """The ids of one table that this worker owns, with their rows in a store.

    Args:
      config: of the table.
      store: has its rows, and those of other tables of the same width.
      initial: makes the first rows of ids.
      overflow: has the row that ids share, None if they share none.
    """

    def __init__(
        self,
        config: TableConfig,
        store: RowStore,
        initial: Callable[[tf.Tensor], tf.Tensor],
        overflow: Overflow | None,
    ):
        self.config = config
        self.store = store
        self.initial = initial
        self.overflow = overflow
        self.map = IdMap()
        admission = config.admission
        self.counter = None if admission is None else counter_of(admission)
        self._admitted_at = 1 if admission is None else admission.count
        with tf.init_scope(), tf.device(HOST):
            self.counts = ResourceVariable(tf.zeros([len(COUNTED)], tf.int64), trainable=False)

    def find(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the rows of ids, -1 for those that have none."""
        rows = self.map.find(ids)
        if self.overflow is None:
            return rows
        return tf.where(self._room() > 0, rows, self.overflow.shared(rows))

    def full_row(self) -> tf.Tensor:
        """Returns the row that ids share if there is no room for more of them, int64 [1] or [0]."""
        if self.overflow is None:
            return tf.zeros([0], tf.int64)
        return self.overflow.row()[: tf.cast(self._room() <= 0, tf.int32)]

    def _room(self) -> tf.Tensor:
        """Returns how many ids more may have rows here, int64."""
        if self.overflow is None:  # a bound over all workers is looked after by all of them
            return tf.constant(tf.int64.max)
        return self.overflow.most() - self.map.size()

    def sought(self, ids: tf.Tensor, counts: tf.Tensor) -> LookupState:
        """Returns what there is of ids that came in training, each named once.

        Args:
          ids: int64 [n].
          counts: how often each came.
        """
        rows = self.map.find(ids)
        missing = tf.where(rows < 0)[:, 0]
        if self.overflow is not None:
            # Where there is no room nothing is counted either, or the counts would grow instead.
            missing = missing[: tf.where(self._room() > 0, tf.size(missing), 0)]
        self._count(lookups=tf.reduce_sum(counts), unique=tf.size(ids, tf.int64))
        return LookupState(ids, counts, rows, missing)

    def admitted(self, sought: LookupState) -> tf.Tensor:
        """Returns the positions of ids that get rows now, int64, of those that have none."""
        places = sought.missing
        if self.counter is not None:
            come = tf.gather(sought.ids, places)
            totals = self.counter.added(come, tf.gather(sought.counts, places))
            places = tf.gather(places, tf.where(totals >= self._admitted_at)[:, 0])
            refused = tf.size(come, tf.int64) - tf.size(places, tf.int64)
            self._count(refused=refused)
        if self.overflow is not None:
            places = places[: self._room()]
        if self.counter is not None:
            self.counter.forget(tf.gather(sought.ids, places))
        return places

    def added(self, sought: LookupState, places: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
        """Gives the ids at places new rows; returns the rows of all ids."""
        self.map.insert(tf.gather(sought.ids, places), new)
        self._count(new=tf.size(new, tf.int64))
        return tf.tensor_scatter_nd_update(sought.rows, places[:, tf.newaxis], new)

    def or_shared(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns the rows of ids that came in training, of those without one what they share."""
        if self.overflow is None:
            return rows
        shared = tf.where(self._room() > 0, rows, self.overflow.shared(rows))
        self._count(shared=tf.math.count_nonzero(shared != rows))
        return shared

    def evict(self) -> tf.Tensor:
        """Takes away the rows that the table's eviction names; returns how many."""
        rule = self.config.eviction
        if rule is None:
            return tf.constant(0, tf.int64)
        ids, rows = self.map.all()
        ages = self.store.step.read_value() - self.store.marks.times.gather(rows)
        goes = tf.zeros_like(ids, tf.bool)
        if rule.age is not None:
            goes |= ages >= rule.age
        if rule.count is not None:
            goes |= self.store.marks.touches.gather(rows) < rule.count
        self.remove(tf.boolean_mask(ids, goes), tf.boolean_mask(rows, goes))
        evicted = tf.math.count_nonzero(goes)
        self._count(evicted=evicted)
        return evicted

    def remove(self, ids: tf.Tensor, rows: tf.Tensor) -> None:
        """Takes rows away; the ids are as if they had never come."""
        self.map.remove(ids)
        self.store.free(rows)

    def refused_bytes(self) -> tf.Tensor:
        """Returns the bytes of what is counted for ids that have no row, int64."""
        return tf.constant(0, tf.int64) if self.counter is None else self.counter.bytes()

    def _count(self, **numbers: tf.Tensor) -> None:
        added = [numbers.get(name, tf.constant(0, tf.int64)) for name in COUNTED]
        with tf.device(HOST):
            self.counts.assign_add(tf.stack(added), read_value=False)
