"""Lookup of keys in the shard that owns them."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from strategies.embedding.config import TableConfig
from strategies.embedding.shard.row_store import RowStore
from strategies.embedding.shard.table import LookupState, Table
from strategies.embedding.shard.table_keys import TableKeys
from strategies.reduction.sparse import sum_by_index
from strategies.variables.growable_array import GrowableArray
from strategies.variables.row_variable import RowVariable


class ShardLookup:
    """Looks up keys in one shard of a group's tables, whose rows share a store.

    Args:
      store: store of the rows.
      tables: the tables, in the order of their numbers in the keys.
      unseen: "initial" or "zeros", the values of an id without a row.
    """

    def __init__(self, store: RowStore, tables: Sequence[Table], unseen: str):
        self._store = store
        self._tables = tables
        self._unseen = unseen

    def __call__(
        self,
        keys: tf.Tensor,
        training: bool,
        starts_step: bool,
        are_distinct: bool = False,
        now: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the rows of keys, -1 for none, and their values, float32 [n, width].

        In training, the rows are references; see [Note: references to rows] in
        variables/row_view.py. If there is an L2 penalty, the values have one more column with the
        factors that `penalties` returns. They depend on the keys of all workers, which only the
        owner of a row has.

        Args:
          keys: number of the table, id and number of its occurrences, int64 [n, 3].
          training: whether ids get rows.
          starts_step: whether this is the first lookup of a step.
          are_distinct: whether the keys contain each id of a table once.
          now: the time that the workers agreed on if `uses_time`; None reads this task's clock.
        """
        if starts_step:
            self._begin_step(now)
        by_table = TableKeys(keys, self.count)
        parts = by_table.parts
        if training:
            rows = self._find_or_insert(parts, are_distinct)
        else:
            rows = [table.find(part[:, 1]) for table, part in zip(self._tables, parts, strict=True)]
        # Values are read after all insertions, which may reallocate the array.
        values = by_table.in_order(self._values(parts, rows, training))
        in_order = by_table.join(rows)
        if training:
            in_order = self._store.view.references(in_order)
        if training and self.has_penalty:
            values = tf.concat([values, self.penalties(keys, in_order)[:, tf.newaxis]], 1)
        return in_order, values

    def _begin_step(self, now: tf.Tensor | None) -> None:
        for table in self._tables:
            table.begin_step(now)
        self._store.step.assign_add(1, read_value=False)

    def begin_changes(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Begins to log which ids get and lose rows; see `end_changes`.

        Returns:
          The number of rows, and what `end_changes` needs: the step, the number of the reader, and
          the number of removed ids of each table; all int64.
        """
        store = self._store
        removals = tf.stack([table.removals.begin() for table in self._tables])
        return (
            store.view.length.read_value(),
            store.step.read_value(),
            store.insertions.begin(),
            removals,
        )

    def end_changes(
        self, step: tf.Tensor, reader: tf.Tensor, removals: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, list[tuple[tf.Tensor, tf.Tensor]]]:
        """Returns what has changed since `begin_changes`.

        Returns:
          The rows that were trained on, int64 [n]; what `InsertionLog.end` returns; and what
          `RemovalLog.since` returns for each table.
        """
        removed = [
            table.removals.since(removals[number]) for number, table in enumerate(self._tables)
        ]
        return self._store.trained_since(step), *self._store.insertions.end(reader), removed

    def fetch(
        self, keys: tf.Tensor, steps: tf.Tensor, slots: Sequence[str]
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns which keys have a row, their values, and the slot variables of those with a row.

        It is for a worker that will train the rows itself, and gives ids rows like a lookup in
        training.

        Args:
          keys: distinct keys: number of the table, id and number of its occurrences, int64 [n, 3].
          steps: number of steps that the worker has taken since it last told this shard.
          slots: names of the slot variables.

        Returns:
          A mask, bool [n]; the values, float32 [n, width]; and the slot variables, one beside the
          other, float32 [m, width * len(slots)].
        """
        self._count_steps(steps)
        references, values = self(keys, training=True, starts_step=False, are_distinct=True)
        has_row = references >= 0
        rows = self._store.view.rows_of(tf.boolean_mask(references, has_row))
        return has_row, values[:, : self.width], self._slot_values(rows, slots)

    def find(self, keys: tf.Tensor) -> tf.Tensor:
        """Returns the rows of keys, -1 for none; gives no id a row, and counts nothing."""
        by_table = TableKeys(keys, self.count)
        pairs = zip(self._tables, by_table.parts, strict=True)
        return by_table.join([table.map.find(part[:, 1]) for table, part in pairs])

    def changes(
        self, rows: tf.Tensor, is_wanted: tf.Tensor, since: tf.Tensor, slots: Sequence[str]
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns what a worker does not know of rows that it keeps a copy of.

        Args:
          rows: the rows, -1 for those that were removed, int64 [n].
          is_wanted: whether a row is returned even if it has not changed, bool [n].
          since: the last result of an earlier call, which tells until when the worker knows the
            rows, int64 [2]; zeros if there was none.
          slots: names of the slot variables.

        Returns:
          Which of the rows exist, bool [n]; which of these are wanted or may have changed, bool
          [number of existing rows]; the values of the latter and their slot variables, one beside
          the other; and what is passed as `since` next time.
        """
        view = self._store.view
        now = tf.stack([self._store.step.read_value(), view.incarnation()])
        exists = rows >= 0
        existing = tf.where(exists)[:, 0]
        found = tf.gather(rows, existing)
        # Others may have changed rows in the step of the earlier call, but after it. The rows of a
        # restarted server may be those of an earlier step.
        is_new = self._store.metadata.last_step.gather(found) >= since[0]
        is_new |= tf.gather(is_wanted, existing) | tf.not_equal(since[1], now[1])
        changed = tf.boolean_mask(found, is_new)
        values = self._store.variable.table.gather(changed)
        return exists, is_new, values, self._slot_values(changed, slots), now

    def add(
        self,
        rows: tf.Tensor,
        occurrences: tf.Tensor,
        counts: tf.Tensor,
        steps: tf.Tensor,
        deltas: tf.Tensor,
        values: tf.Tensor,
        slots: Sequence[str],
        workers: int,
    ) -> None:
        """Adds to rows what one of several workers has changed in them.

        A slot variable takes the mean of its value here and the worker's, with the weight 1/N of
        the worker. So it stays between the values that it has had: a sum of changes, like that of
        rows, could make a mean of squares negative.

        Args:
          rows: the rows, each once, -1 for those that were removed, int64 [n].
          occurrences: numbers of the further occurrences of their ids, int64 [n].
          counts: numbers of further lookups, and of those that differ in a step, of each table,
            int64 [tables, 2].
          steps: number of steps that the worker has taken since it last told this shard.
          deltas: what is added to the rows, float32 [n, width].
          values: slot variables, one beside the other, float32 [n, width * len(slots)].
          slots: names of the slot variables.
          workers: number of workers, N.
        """
        self._count_steps(steps)
        for number, table in enumerate(self._tables):
            table.add_counts(lookups=counts[number, 0], unique=counts[number, 1])
        present = tf.where(rows >= 0)[:, 0]
        rows = tf.gather(rows, present)
        self._store.touch(rows, tf.gather(occurrences, present))
        self._store.variable.table.add(rows, tf.gather(deltas, present))
        if not slots:
            return
        weight = 1.0 / workers
        each = tf.split(tf.gather(values, present), len(slots), axis=1)
        for array, own in zip(self._slot_arrays(slots), each, strict=True):
            array.train(rows, (1.0 - weight) * array.gather(rows) + weight * own)

    def _count_steps(self, steps: tf.Tensor) -> None:
        """Counts steps that a worker has taken without a lookup here."""

        def count() -> tf.Tensor:
            self._store.step.assign_add(steps - 1)
            self._begin_step(None)
            return tf.constant(True)

        tf.cond(steps > 0, count, lambda: tf.constant(False))

    def _slot_values(self, rows: tf.Tensor, slots: Sequence[str]) -> tf.Tensor:
        """Returns slot variables of rows, one beside the other, float32 [n, width * len(slots)]."""
        columns = [array.gather(rows) for array in self._slot_arrays(slots)]
        return tf.concat(columns, 1) if columns else tf.zeros([tf.size(rows), 0])

    def _slot_arrays(self, slots: Sequence[str]) -> list[GrowableArray]:
        """Returns the arrays of slot variables, which have as many rows as the table."""
        arrays = [self._store.slots()[name] for name in slots]
        for array in arrays:
            array.resize(self._store.view.length.read_value())
        return arrays

    def penalties(
        self, keys: tf.Tensor, rows: tf.Tensor, of_all: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Returns the factor of each key's squared row in the L2 penalty of a step, float32 [n].

        The factors of a row's keys, of which each replica may have one, add up to the table's `l2`.

        Args:
          keys: keys of the tables, int64 [n, 3].
          rows: their rows, -1 for none, int64 [n].
          of_all: the rows of the keys of all workers; None if `keys` are the keys of all workers.
        """
        many = rows if of_all is None else tf.concat([of_all, rows], 0)
        _, indices, counts = tf.unique_with_counts(many)
        if of_all is not None:
            indices, counts = indices[tf.size(of_all) :], counts - 1
        tables = tf.constant([table.config.l2 for table in self._tables], tf.float32)
        whole = tf.where(rows >= 0, tf.gather(tables, keys[:, 0]), 0.0)
        return whole / tf.cast(tf.gather(counts, indices), tf.float32)

    @property
    def has_penalty(self) -> bool:
        """Whether a table has an L2 penalty."""
        return any(table.config.l2 for table in self._tables)

    def _find_or_insert(self, parts: Sequence[tf.Tensor], are_distinct: bool) -> list[tf.Tensor]:
        """Returns the rows of each table's keys, after inserting admitted ids.

        See [Note: admission per step] in lookup/router.py.
        """
        states, positions = [], []
        for table, part in zip(self._tables, parts, strict=True):
            # Several workers or replicas may have sent an id. It is counted and inserted once.
            ids, counts, indices = part[:, 1], part[:, 2], None
            if not are_distinct:
                ids, indices, (counts,) = sum_by_index(ids, counts)
            states.append(table.look_up(ids, counts))
            positions.append(indices)
        # Most steps have no new ids and skip the insertion. There is one condition for all tables,
        # because each condition adds a graph that grows the arrays.
        rows = tf.cond(
            tf.add_n([tf.size(state.missing) for state in states]) > 0,
            lambda: self._insert_admitted(states),
            lambda: [state.rows for state in states],
        )
        rows = [table.share_row(each) for table, each in zip(self._tables, rows, strict=True)]
        self._touch(states, rows)
        return [
            each if indices is None else tf.gather(each, indices)
            for each, indices in zip(rows, positions, strict=True)
        ]

    def _insert_admitted(self, states: Sequence[LookupState]) -> list[tf.Tensor]:
        """Creates rows with initial values for admitted ids; returns the rows of all ids."""
        pairs = list(zip(self._tables, states, strict=True))
        positions = [table.admit(state) for table, state in pairs]
        sizes = [tf.size(each, tf.int64) for each in positions]
        new = self._store.allocate(tf.add_n(sizes))
        ids = [
            tf.gather(state.ids, admitted)
            for (_, state), admitted in zip(pairs, positions, strict=True)
        ]
        initial = [table.initial(each) for (table, _), each in zip(pairs, ids, strict=True)]
        self._store.variable.table.update(new, tf.concat(initial, 0))
        parts = tf.split(new, sizes) if len(sizes) > 1 else [new]
        parts = [tf.ensure_shape(part, [None]) for part in parts]
        self._store.insertions.record(ids, parts)
        return [
            table.insert(state, admitted, part)
            for (table, state), admitted, part in zip(pairs, positions, parts, strict=True)
        ]

    def _touch(self, states: Sequence[LookupState], rows: Sequence[tf.Tensor]) -> None:
        """Records that a step trains on rows, each once: arrays can only update distinct rows."""
        numbers = tf.concat(rows, 0)
        counts = tf.concat([state.counts for state in states], 0)
        present = tf.where(numbers >= 0)[:, 0]
        numbers, counts = tf.gather(numbers, present), tf.gather(counts, present)
        if self.is_shared:
            numbers, _, (counts,) = sum_by_index(numbers, counts)
        self._store.touch(numbers, counts)

    def _values(
        self, parts: Sequence[tf.Tensor], rows: Sequence[tf.Tensor], training: bool
    ) -> tf.Tensor:
        """Returns the values of all tables' rows; where the row is -1, those of unseen ids."""
        if training and all(table.always_has_rows for table in self._tables):
            return self._store.variable.table.gather(tf.concat(rows, 0))
        each = [
            self._table_values(table, part[:, 1], row, training)
            for table, part, row in zip(self._tables, parts, rows, strict=True)
        ]
        return tf.concat(each, 0)

    def _table_values(
        self, table: Table, ids: tf.Tensor, rows: tf.Tensor, training: bool
    ) -> tf.Tensor:
        array = self._store.variable.table
        if training and table.always_has_rows:
            return array.gather(rows)
        present, absent = tf.where(rows >= 0)[:, 0], tf.where(rows < 0)[:, 0]
        if self._unseen == "initial":
            others = table.initial(tf.gather(ids, absent))
        else:
            others = tf.zeros([tf.size(absent), self._store.width])
        positions = [tf.cast(present, tf.int32), tf.cast(absent, tf.int32)]
        values = tf.dynamic_stitch(positions, [array.gather(tf.gather(rows, present)), others])
        return tf.reshape(values, [-1, self._store.width])

    @property
    def tables(self) -> Sequence[Table]:
        """The tables, in the order of their numbers in the keys."""
        return self._tables

    @property
    def variable(self) -> RowVariable:
        """The variable of the rows."""
        return self._store.variable

    @property
    def width(self) -> int:
        """The width of the rows."""
        return self._store.width

    @property
    def limited(self) -> list[TableConfig]:
        """The tables whose limit the ids of a step may exceed; see `excess`."""
        return [table.config for table in self._tables if table.may_exceed]

    @property
    def uses_time(self) -> bool:
        """Whether rows are evicted by the clock."""
        return any(table.evictor.times is not None for table in self._tables)

    @property
    def is_shared(self) -> bool:
        """Whether ids may share a row."""
        return any(table.overflow is not None for table in self._tables)

    @property
    def slots(self) -> list[str]:
        """Names of the slot variables."""
        return list(self._store.slots())

    @property
    def count(self) -> int:
        """Number of tables."""
        return len(self._tables)

    def excess(self) -> tf.Tensor:
        """Returns this shard's part of what `check_limits` compares, int64, by `limited` table."""
        parts = [table.excess() for table in self._tables if table.may_exceed]
        return tf.stack(parts) if parts else tf.zeros([0], tf.int64)
