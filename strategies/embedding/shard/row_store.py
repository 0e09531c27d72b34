"""Where one worker's rows are: their values, their slot variables, and when they were touched."""

from __future__ import annotations

import math
from collections.abc import Callable

import tensorflow as tf

from strategies._tensorflow import ResourceVariable
from strategies.embedding.shard.row_metadata import RowMetadata
from strategies.variables.growable_array import HOST, GrowableArray
from strategies.variables.sparse_variable import SparseVariable
from tf_config.capacity import MAP_ENTRY


class RowStore:
    """The rows of all tables of one width; rows that are free are given out again.

    Args:
      variable: has the rows' values, and slot variables.
    """

    def __init__(self, variable: SparseVariable):
        self.width = int(variable.shape[-1])
        self.view = variable.view
        self.variable = variable
        self._expected: dict[str, GrowableArray] = {}
        self.marks = RowMetadata(self.view.expected)
        with tf.init_scope(), tf.device(HOST):
            self.step = ResourceVariable(tf.constant(0, tf.int64), trainable=False)
            self._free = ResourceVariable(tf.zeros([0], tf.int64), trainable=False, shape=[None])

    def allocated(self, count: tf.Tensor) -> tf.Tensor:
        """Returns rows that nobody has, int64 [count]."""
        with tf.device(HOST):
            free, there = self._free.read_value(), self.view.length.read_value()
            again = free[:count]
            length = there + count - tf.size(again, tf.int64)
            self._free.assign(free[count:])
            self.view.length.assign(length)
            for rows in (self.variable.table, self.marks.array):
                rows.resize(length)
            for slot in self.slots().values():
                slot.reset(again)  # once more, for a gradient may have come after `free`
            return tf.concat([again, tf.range(there, length)], 0)

    def free(self, rows: tf.Tensor) -> None:
        """Gives rows back; their slot variables are as if they were new."""
        for slot in self.slots().values():
            slot.reset(rows)
        self.marks.array.reset(rows)
        self._free.assign(tf.concat([self._free.read_value(), rows], 0))

    def touch(self, rows: tf.Tensor, counts: tf.Tensor) -> None:
        """Notes that rows, each named once, are trained on in this step, each so often."""
        self.marks.touch(rows, self.step.read_value(), counts)

    def clear(self) -> None:
        """Forgets all rows."""
        for rows in (self.variable.table, self.marks.array, *self.slots().values()):
            rows.clear()
        self._free.assign(tf.zeros([0], tf.int64))
        self.view.length.assign(0)
        self.view.show(tf.zeros([0], tf.int64))

    def slots(self) -> dict[str, GrowableArray]:
        """Returns the slot variables' rows by name, those that are yet to be made as well."""
        made = {name: slot.table for name, slot in self.variable.slots.items()}
        return {**made, **self._expected}

    def expect(self, name: str, make: Callable[[], GrowableArray]) -> None:
        """Sees to it that there are rows of a slot variable; the optimizer may make it later."""
        if name not in self.slots():
            self._expected[name] = make()

    def forget_expected(self) -> None:
        """Forgets slot variables that the optimizer has not made."""
        self._expected.clear()

    def set_step(self, step: tf.Tensor) -> None:
        """Sets the number of steps that there were."""
        self.step.assign(step)

    def adopt(self, name: str, slot: SparseVariable) -> bool:
        """Gives a slot variable the rows that were expected of it; returns whether there are."""
        is_expected = name in self._expected
        if is_expected:
            slot.take(self._expected.pop(name))
        return is_expected

    def reset_free(self, name: str) -> None:
        """Sets a slot variable's rows that nobody has to what new ones are."""
        self.slots()[name].reset(self._free.read_value())

    def row_bytes(self) -> int:
        """Returns the bytes that one row takes, with its slot variables and its id's place."""
        arrays = [self.variable.table, self.marks.array, *self.slots().values()]
        return MAP_ENTRY + sum(math.prod(array.shape) * array.dtype.size for array in arrays)
