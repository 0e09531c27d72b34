"""Where the rows of keys are, in the place that has them, and what they hold."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from strategies.embedding.shard.row_store import RowStore
from strategies.embedding.shard.table import LookupState, Table


class ShardLookup:
    """Finds the rows of tables that are in one store.

    Args:
      store: has the rows.
      tables: by the number that they have in the keys.
      unseen: "initial" or "zeros", what an id has that has no row.
    """

    def __init__(self, store: RowStore, tables: Sequence[Table], unseen: str):
        self._store = store
        self._tables = tables
        self._unseen = unseen

    def __call__(
        self, keys: tf.Tensor, training: bool, begins: bool, are_distinct: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the rows of keys, -1 for none, and their values, float32 [n, width].

        Args:
          keys: number of the table, id, and how often it came, int64 [n, 3].
          training: whether ids get rows.
          begins: whether a step begins with it.
          are_distinct: whether each id of a table is named once.
        """
        if begins:
            self._store.step.assign_add(1, read_value=False)
        numbers = tf.cast(keys[:, 0], tf.int32)
        count = len(self._tables)
        parts = tf.dynamic_partition(keys, numbers, count) if count > 1 else [keys]
        if training:
            rows = self._found_or_added(parts, are_distinct)
        else:
            rows = [table.find(part[:, 1]) for table, part in zip(self._tables, parts, strict=True)]
        # All tables first, for adding may move the array.
        values = self._values(parts, rows, training)
        if count == 1:
            return rows[0], values
        places = tf.dynamic_partition(tf.range(tf.size(numbers)), numbers, count)
        order = tf.math.invert_permutation(tf.concat(places, 0))
        return tf.gather(tf.concat(rows, 0), order), tf.gather(values, order)

    def _found_or_added(self, parts: Sequence[tf.Tensor], are_distinct: bool) -> list[tf.Tensor]:
        """Returns the rows of each table's keys, made for ids that had none and are admitted."""
        sought, positions = [], []
        for table, part in zip(self._tables, parts, strict=True):
            ids, counts, places = part[:, 1], part[:, 2], None
            if not are_distinct:
                ids, places = tf.unique(ids)
                counts = tf.math.unsorted_segment_sum(counts, places, tf.size(ids))
            sought.append(table.sought(ids, counts))
            positions.append(places)
        # Of all tables at once: what makes an array larger is a graph of its own each time.
        rows = tf.cond(
            tf.add_n([tf.size(each.missing) for each in sought]) > 0,
            lambda: self._added(sought),
            lambda: [each.rows for each in sought],
        )
        rows = [table.or_shared(each) for table, each in zip(self._tables, rows, strict=True)]
        self._touch(sought, rows)
        return [
            each if places is None else tf.gather(each, places)
            for each, places in zip(rows, positions, strict=True)
        ]

    def _added(self, sought: Sequence[LookupState]) -> list[tf.Tensor]:
        """Returns the rows of ids, those that are admitted new ones."""
        pairs = list(zip(self._tables, sought, strict=True))
        places = [table.admitted(each) for table, each in pairs]
        sizes = [tf.size(each, tf.int64) for each in places]
        new = self._store.allocated(tf.add_n(sizes))
        first = [
            table.initial(tf.gather(each.ids, come))
            for (table, each), come in zip(pairs, places, strict=True)
        ]
        self._store.variable.table.update(new, tf.concat(first, 0))
        parts = tf.split(new, sizes) if len(sizes) > 1 else [new]
        return [
            table.added(each, come, tf.ensure_shape(part, [None]))
            for (table, each), come, part in zip(pairs, places, parts, strict=True)
        ]

    def _touch(self, sought: Sequence[LookupState], rows: Sequence[tf.Tensor]) -> None:
        """Notes that rows are trained on."""
        numbers = tf.concat(rows, 0)
        counts = tf.concat([each.counts for each in sought], 0)
        there = tf.where(numbers >= 0)[:, 0]
        numbers, counts = tf.gather(numbers, there), tf.gather(counts, there)
        if self.is_shared:
            numbers, places = tf.unique(numbers)
            counts = tf.math.unsorted_segment_sum(counts, places, tf.size(numbers))
        self._store.touch(numbers, counts)

    def _values(
        self, parts: Sequence[tf.Tensor], rows: Sequence[tf.Tensor], training: bool
    ) -> tf.Tensor:
        """Returns the values of all tables' rows, and for -1 what an id has that has no row."""
        if training and all(table.counter is None for table in self._tables):
            return self._store.variable.table.gather(tf.concat(rows, 0))
        each = [
            self._valued(table, part[:, 1], row, training)
            for table, part, row in zip(self._tables, parts, rows, strict=True)
        ]
        return tf.concat(each, 0)

    def _valued(self, table: Table, ids: tf.Tensor, rows: tf.Tensor, training: bool) -> tf.Tensor:
        """Returns the values of rows, and for -1 what an id has that has no row."""
        array = self._store.variable.table
        if training and table.counter is None:
            return array.gather(rows)
        there, absent = tf.where(rows >= 0)[:, 0], tf.where(rows < 0)[:, 0]
        if self._unseen == "initial":
            others = table.initial(tf.gather(ids, absent))
        else:
            others = tf.zeros([tf.size(absent), self._store.width])
        places = [tf.cast(there, tf.int32), tf.cast(absent, tf.int32)]
        values = tf.dynamic_stitch(places, [array.gather(tf.gather(rows, there)), others])
        return tf.reshape(values, [-1, self._store.width])

    @property
    def bounds(self) -> dict[str, int]:
        """How many ids tables may have at most, those that end a step beyond it."""
        return {
            table.config.name: table.config.input_dim
            for table in self._tables
            if table.config.input_dim is not None and table.overflow is None
        }

    @property
    def is_shared(self) -> bool:
        """Whether ids may share a row."""
        return any(table.overflow is not None for table in self._tables)

    @property
    def slots(self) -> list[str]:
        """The names of the slot variables."""
        return list(self._store.slots())

    @property
    def count(self) -> int:
        """How many tables there are."""
        return len(self._tables)

    def sizes(self) -> tf.Tensor:
        """Returns how many ids the tables with a bound have here, int64."""
        bounds = self.bounds
        sizes = [table.map.size() for table in self._tables if table.config.name in bounds]
        return tf.stack(sizes) if sizes else tf.zeros([0], tf.int64)
