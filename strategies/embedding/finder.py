"""Where the rows of keys are, in the place that has them, and what they hold."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from strategies.embedding.store import RowStore
from strategies.embedding.table import Table


class Finder:
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
        self, keys: tf.Tensor, training: bool, begins: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the rows of keys, -1 for none, and their values, float32 [n, width].

        Args:
          keys: number of the table, id, and how often it came, int64 [n, 3].
          training: whether ids get rows.
          begins: whether a step begins with it.
        """
        if begins:
            self._store.step.assign_add(1, read_value=False)
        numbers = tf.cast(keys[:, 0], tf.int32)
        count = len(self._tables)
        parts = tf.dynamic_partition(keys, numbers, count) if count > 1 else [keys]
        rows = []
        for table, part in zip(self._tables, parts, strict=True):
            ids, counts = part[:, 1], part[:, 2]
            rows.append(table.find_or_add(ids, counts) if training else table.find(ids))
        # All tables first, for adding may move the array.
        values = [
            self._valued(table, part[:, 1], row, training)
            for table, part, row in zip(self._tables, parts, rows, strict=True)
        ]
        if count == 1:
            return rows[0], values[0]
        places = tf.dynamic_partition(tf.range(tf.size(numbers)), numbers, count)
        return (
            tf.reshape(tf.dynamic_stitch(places, rows), [-1]),
            tf.reshape(tf.dynamic_stitch(places, values), [-1, self._store.width]),
        )

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
