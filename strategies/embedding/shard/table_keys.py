"""Keys of a lookup, split by the tables that they belong to."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf


class TableKeys:
    """Keys of the tables of a group, split by table.

    >>> keys = TableKeys(tf.constant([[1, 70, 2], [0, 80, 1], [1, 90, 1]], tf.int64), 2)
    >>> [part[:, 1].numpy().tolist() for part in keys.parts]
    [[80], [70, 90]]
    >>> keys.join([tf.constant([5]), tf.constant([6, 7])]).numpy().tolist()
    [6, 5, 7]

    Args:
      keys: number of the table, id and number of its occurrences, int64 [n, 3].
      count: number of tables.

    Attributes:
      parts: keys of each table.
    """

    def __init__(self, keys: tf.Tensor, count: int):
        self.parts = [keys]
        self._order: tf.Tensor | None = None
        if count > 1:
            numbers = tf.cast(keys[:, 0], tf.int32)
            self.parts = tf.dynamic_partition(keys, numbers, count)
            positions = tf.dynamic_partition(tf.range(tf.size(numbers)), numbers, count)
            self._order = tf.math.invert_permutation(tf.concat(positions, 0))

    def join(self, by_table: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns values of each table's keys as one tensor, in the order of all keys."""
        joined = by_table[0] if len(by_table) == 1 else tf.concat(by_table, 0)
        return self.in_order(joined)

    def in_order(self, joined: tf.Tensor) -> tf.Tensor:
        """Returns the values of all keys, one table after the other, in the order of the keys."""
        return joined if self._order is None else tf.gather(joined, self._order)
