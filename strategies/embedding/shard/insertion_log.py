"""Log of the ids that get a row in a store while all rows are saved."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from strategies.compat.tensorflow import ResourceVariable
from strategies.utils.devices import HOST
from strategies.variables.growable_array import GrowableArray

# Rows of the log for which memory is reserved; it grows beyond.
_EXPECTED = 1 << 12


class InsertionLog:
    """The rows that ids of a group's tables get, for a reader that knows who had them before.

    It has one reader at a time. If another one begins before the first has ended, the first gets
    nothing, and has to list all ids.

    >>> log = InsertionLog()
    >>> reader = log.begin()
    >>> log.record([tf.constant([7, 8], tf.int64)], [tf.constant([0, 1], tf.int64)])
    >>> entries, is_complete = log.end(reader)
    >>> entries.numpy().tolist(), bool(is_complete)
    ([[0, 0, 7], [1, 0, 8]], True)
    """

    def __init__(self) -> None:
        self._entries = GrowableArray((3,), tf.int64, expected=_EXPECTED)
        with tf.init_scope(), tf.device(HOST):
            self._reader = ResourceVariable(tf.constant(0, tf.int64), trainable=False)
            self._is_kept = ResourceVariable(tf.constant(False), trainable=False)

    def begin(self) -> tf.Tensor:
        """Begins a new log; returns the number of its reader, int64."""
        with tf.device(HOST):
            self._entries.clear()
            self._is_kept.assign(True)
            return self._reader.assign_add(1)

    def record(self, ids: Sequence[tf.Tensor], rows: Sequence[tf.Tensor]) -> None:
        """Records the ids of each table that have just got rows, and the rows."""

        def append() -> tf.Tensor:
            entries = [
                tf.stack([row, tf.fill(tf.shape(row), tf.constant(number, tf.int64)), id_], 1)
                for number, (id_, row) in enumerate(zip(ids, rows, strict=True))
            ]
            self._entries.append(tf.concat(entries, 0))
            return tf.constant(True)

        with tf.device(HOST):
            tf.cond(self._is_kept.read_value(), append, lambda: tf.constant(False))

    def end(self, reader: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Ends the log of a reader, unless another one has begun a new one.

        Returns:
          The row, the number of the table and the id of each insertion, in their order, int64
          [n, 3], and whether these are all since the reader began.
        """
        with tf.device(HOST):
            is_complete = self._is_kept.read_value() & tf.equal(self._reader.read_value(), reader)
            count = tf.where(is_complete, self._entries.length(), 0)
            entries = self._entries.gather(tf.range(count))

            def clear() -> tf.Tensor:
                self._entries.clear()
                self._is_kept.assign(False)
                return tf.constant(True)

            with tf.control_dependencies([entries]):
                tf.cond(is_complete, clear, lambda: tf.constant(False))
            return entries, is_complete
