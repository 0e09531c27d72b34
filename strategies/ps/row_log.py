"""A server's log of the rows of a variable that changed, so that workers pull only these.

Most rows of an embedding do not change in a step. A worker sends the position in the log up to
which its copy is current, and the server returns the rows that have changed since.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from strategies.compat.tensorflow import ResourceVariable
from strategies.variables.restart_marks import mark_advance

NEVER = -1  # the position of a copy that lacks all changes
_MIN_ROWS = 1024
_ROWS_PER_ENTRY = 4
_READS = {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape"}
_ROW_WRITES = {
    "ResourceScatterAdd", "ResourceScatterSub", "ResourceScatterUpdate", "ResourceScatterMul",
    "ResourceScatterDiv", "ResourceScatterMax", "ResourceScatterMin",
}  # fmt: skip
# Added to the position by a restarted server. Workers know positions that are newer than the
# restored one, and their copies have changes that the server has lost. With this number, every copy
# lacks more entries than any buffer holds, and is pulled as a whole.
_AT_RESTART = 2**40


def has_row_log(shape: Sequence[int]) -> bool:
    """Returns whether a variable of this shape has enough rows for a log.

    >>> has_row_log([1_000_000, 16]), has_row_log([128, 16]), has_row_log([1_000_000])
    (True, False, False)
    """
    return len(shape) > 1 and shape[0] >= _MIN_ROWS


class RowLog:
    """A log of the rows of a slice that changed, in a ring buffer on the server of the slice.

    The position of the log is the number of entries ever made. A copy that lacks more entries than
    the buffer holds is pulled as a whole. All methods except `clear` must be called in functions
    that hold the server's lock.

    Args:
      name: the name of the slice's variable on the server.
      rows: the number of rows of the slice.
    """

    def __init__(self, name: str, rows: int):
        capacity = max(rows // _ROWS_PER_ENTRY, 1)
        self._rows = rows
        self._capacity = capacity
        self._entries = ResourceVariable(
            lambda: tf.zeros([capacity], tf.int64), name=f"{name}/changed_rows", trainable=False
        )
        self._position = ResourceVariable(
            lambda: tf.zeros([], tf.int64), name=f"{name}/row_log_position", trainable=False
        )
        mark_advance(self._position, _AT_RESTART)

    def clear(self) -> list[tf.Operation]:
        """Returns operations that empty the log; they must run before the slice is used."""
        return [
            self._entries.assign(tf.zeros([self._capacity], tf.int64), read_value=False),
            self._position.assign(tf.zeros([], tf.int64), read_value=False),
        ]

    def add(self, rows: tf.Tensor) -> None:
        """Logs that rows have changed.

        Args:
          rows: their numbers in the slice, int64 [count]; one may occur several times.
        """
        position, count = self._position.read_value(), tf.size(rows, tf.int64)
        # If there are more rows than the buffer holds, it does not matter which of them stay in it:
        # every copy then lacks more entries than the buffer holds.
        places = (position + tf.range(count)) % self._capacity
        self._entries.scatter_update(tf.IndexedSlices(rows, places))
        self._position.assign(position + count, read_value=False)

    def add_all(self) -> None:
        """Logs that all rows may have changed.

        The position moves by more than the buffer's length, so that copies are pulled as a whole.
        """
        self._position.assign_add(self._capacity + 1, read_value=False)

    def since(self, position: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the numbers of the rows that changed after a position, and the current position.

        Args:
          position: a former position of this log or `NEVER`, int64 scalar.
        """
        present, entries = self._position.read_value(), self._entries.read_value()

        def changed() -> tf.Tensor:
            places = (position + tf.range(present - position)) % self._capacity
            return tf.unique(tf.gather(entries, places)).y

        is_known = (position >= 0) & (present - position <= self._capacity)
        rows = tf.cond(is_known, changed, lambda: tf.range(self._rows, dtype=tf.int64))
        return rows, present


def trace_changed_rows(update: Callable[[], Any], variable: ResourceVariable) -> tf.Tensor | None:
    """Adds an update to the function being traced; returns which rows it changes.

    The rows are derived from the update's operations, so this works for any optimizer. An operation
    that is not known to read or to write rows is assumed to write all of them: a row that is logged
    unnecessarily is only pulled unnecessarily, but a row that is missing stays wrong on a worker.

    Args:
      update: creates the operations of the update.
      variable: the variable that it changes.

    Returns:
      The numbers of the rows, int64 [count], possibly with repetitions. None if the update may
      change all rows.
    """
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    update()
    # Inside a function, operations refer to a variable by the function's own input.
    handle = graph.capture(variable.handle)
    users = [
        operation
        for operation in graph.get_operations()[before:]
        if any(tensor.name == handle.name for tensor in operation.inputs)
    ]
    writers = [operation for operation in users if operation.type not in _READS]
    if any(operation.type not in _ROW_WRITES for operation in writers):
        return None
    rows = [tf.reshape(tf.cast(writer.inputs[1], tf.int64), [-1]) for writer in writers]
    return tf.concat(rows, 0) if rows else tf.zeros([0], tf.int64)
