"""One shard of a table: its ids with rows, and the lifetime of a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from strategies.compat.tensorflow import ResourceVariable
from strategies.embedding.config import TableConfig
from strategies.embedding.shard.admission import make_counter
from strategies.embedding.shard.capacity import Capacity, Overflow
from strategies.embedding.shard.eviction import Evictor
from strategies.embedding.shard.id_map import IdMap
from strategies.embedding.shard.removal_log import RemovalLog
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
      capacity: maximum number of ids with a row in this shard; None if the shard has no limit of
        its own.

    Attributes:
      config: configuration of the table.
      store: store of the rows.
      initial: function from ids to their initial rows.
      map: map of the ids with a row.
      capacity: capacity of the shard; None if it has no limit of its own.
      overflow: the same, with the row that further ids share; None if they share none.
      counter: counter of the ids without a row; None without an admission rule.
      removals: log of the ids whose rows the evictor removed.
      evictor: removes rows.
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
        self.removals = RemovalLog(self.map)
        self.evictor = Evictor(config.eviction, self.map, store, self.removals)
        self.overflow: Overflow | None = None
        self.capacity: Capacity | None = None
        if capacity is not None and config.overflow == "share":
            self.capacity = self.overflow = Overflow(capacity, self.map, store)
        elif capacity is not None:
            self.capacity = Capacity(capacity, self.map)
        admission = config.admission
        self.counter = None if admission is None else make_counter(admission)
        self._admitted_at = 1 if admission is None else admission.count
        with tf.init_scope(), tf.device(HOST):
            self.counts = ResourceVariable(tf.zeros([len(STATISTICS)], tf.int64), trainable=False)
            # How many ids of the last lookup in training could not be inserted.
            self._excess = ResourceVariable(tf.constant(0, tf.int64), trainable=False)

    def begin_step(self, now: tf.Tensor | None) -> None:
        """Evicts rows between two steps if the table's rule says so; see `Evictor.begin_step`."""
        evicted = self.evictor.begin_step(now)
        if evicted is not None:
            self.add_counts(evicted=evicted)

    def evict(self, now: tf.Tensor | None = None) -> tf.Tensor:
        """Removes the rows that the eviction rule selects; returns their number, int64."""
        evicted = self.evictor.remove_expired(now)
        self.add_counts(evicted=evicted)
        return evicted

    def size(self) -> tf.Tensor:
        """Returns the number of ids with a row, int64."""
        return self.map.size()

    def all(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns all ids with a row and their rows, in no particular order."""
        return self.map.all()

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
        if self._makes_room:
            self._excess.assign(0)
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
        elif self.capacity is not None:
            positions = self._make_room(state, positions, self.capacity)
        if self.counter is not None:
            self.counter.forget(tf.gather(state.ids, positions))
        return positions

    @property
    def _makes_room(self) -> bool:
        """Whether rows are evicted to make room for those of new ids."""
        return self.capacity is not None and self.overflow is None

    def _make_room(self, state: LookupState, positions: tf.Tensor, capacity: Capacity) -> tf.Tensor:
        """Makes room for the ids at `positions`; returns these, or none if there is too little."""
        least = tf.size(positions, tf.int64) - capacity.remaining()
        batch = capacity.batch()
        used = tf.boolean_mask(state.rows, state.rows >= 0)
        removed, excess = tf.unstack(
            tf.cond(
                least > 0,
                lambda: self.evictor.make_room(least, batch, used),
                lambda: tf.zeros([2], tf.int64),
            )
        )
        self.add_counts(evicted=removed)
        self._excess.assign(excess)
        return positions[: tf.where(excess > 0, 0, tf.size(positions))]

    @property
    def may_exceed(self) -> bool:
        """Whether the ids of a step may be more than the table can have."""
        return self.config.input_dim is not None and self.overflow is None

    def excess(self) -> tf.Tensor:
        """Returns this shard's part of the number that `check_limits` compares, int64.

        It is the number of ids with a row; with `overflow="evict"`, that of the ids of the last
        lookup in training for which there was no room.
        """
        return self._excess.read_value() if self._makes_room else self.map.size()

    @property
    def always_has_rows(self) -> bool:
        """Whether each id of a lookup in training has a row afterwards."""
        return self.counter is None and not self._makes_room

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
