"""One worker's part of a table: which of its ids have rows, and the life of a row."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from strategies._tensorflow import ResourceVariable
from strategies.embedding.admission import counter_of
from strategies.embedding.config import TableConfig
from strategies.embedding.ids import IdMap
from strategies.embedding.overflow import Overflow
from strategies.embedding.store import RowStore
from strategies.row_array import HOST

# What `statistics` counts, in this order.
COUNTED = ("lookups", "unique", "new", "refused", "evicted", "shared")


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
        return self.overflow.most - self.map.size()

    def find_or_add(self, ids: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
        """Returns the rows of ids, made for those that had none and are admitted, else -1.

        Args:
          ids: int64 [n]; an id may be named more than once.
          counts: how often each came.
        """
        ids, positions = tf.unique(ids)
        counts = tf.math.unsorted_segment_sum(counts, positions, tf.size(ids))
        rows = self.map.find(ids)
        missing = tf.where(rows < 0)[:, 0]
        # Where there is no room nothing is counted either, or the counts would grow instead.
        rows = tf.cond(
            (tf.size(missing) > 0) & (self._room() > 0),
            lambda: self._added(ids, counts, rows, missing),
            lambda: rows,
        )
        if self.overflow is not None:
            shared = tf.where(self._room() > 0, rows, self.overflow.shared(rows))
            self._count(shared=tf.math.count_nonzero(shared != rows))
            rows = shared
        there = tf.where(rows >= 0)[:, 0]
        self.store.touch(tf.gather(rows, there), tf.gather(counts, there))
        self._count(lookups=tf.reduce_sum(counts), unique=tf.size(ids, tf.int64))
        return tf.gather(rows, positions)

    def _added(
        self, ids: tf.Tensor, counts: tf.Tensor, rows: tf.Tensor, missing: tf.Tensor
    ) -> tf.Tensor:
        come = tf.gather(ids, missing)
        if self.counter is not None:
            totals = self.counter.added(come, tf.gather(counts, missing))
            admitted = tf.where(totals >= self._admitted_at)[:, 0]
            self._count(refused=tf.size(missing, tf.int64) - tf.size(admitted, tf.int64))
            missing, come = tf.gather(missing, admitted), tf.gather(come, admitted)
        if self.overflow is not None:
            room = self._room()
            missing, come = missing[:room], come[:room]
        if self.counter is not None:
            self.counter.forget(come)
        new = self.store.allocated(tf.size(come, tf.int64))
        self.store.variable.table.update(new, self.initial(come))
        self.map.insert(come, new)
        self._count(new=tf.size(come, tf.int64))
        return tf.tensor_scatter_nd_update(rows, missing[:, tf.newaxis], new)

    def evict(self) -> tf.Tensor:
        """Takes away the rows that the table's eviction names; returns how many."""
        rule = self.config.eviction
        if rule is None:
            return tf.constant(0, tf.int64)
        ids, rows = self.map.all()
        ages = self.store.step.read_value() - self.store.times.gather(rows)
        goes = tf.zeros_like(ids, tf.bool)
        if rule.age is not None:
            goes |= ages >= rule.age
        if rule.count is not None:
            goes |= self.store.touches.gather(rows) < rule.count
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
