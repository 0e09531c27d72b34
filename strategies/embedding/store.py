"""Where one worker's rows are: their values, their slot variables, and when they were touched."""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

from strategies._tensorflow import ResourceVariable
from strategies.embedding.trainer import Trainer
from strategies.row_array import HOST, Rows
from strategies.row_variable import RowVariable, View
from tf_config.capacity import MAP_ENTRY


class RowStore:
    """The rows of all tables of one width; rows that are free are given out again.

    Args:
      width: of a row.
      name: of its variable.
      strategy: the one that it is made under, None for none.
    """

    def __init__(self, width: int, name: str, strategy: tf.distribute.Strategy | None):
        self.width = width
        self.view = View()
        self.variable = RowVariable(self.view, np.zeros(width, np.float32), True, name, strategy)
        self.variable.on_slot(self._slot_made)
        # What trains the rows, None if the model's optimizer does.
        self.trainer: Trainer | None = None
        self._expected: dict[str, Rows] = {}
        # In which step a row was trained on last, and how often it was.
        self.times = Rows((), tf.int64, fill=0)
        self.touches = Rows((), tf.int32, fill=0)
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
            for rows in (self.variable.table, self.times, self.touches):
                rows.resize(length)
            for slot in self.slots().values():
                slot.reset(again)  # once more, for a gradient may have come after `free`
            return tf.concat([again, tf.range(there, length)], 0)

    def free(self, rows: tf.Tensor) -> None:
        """Gives rows back; their slot variables are as if they were new."""
        for slot in self.slots().values():
            slot.reset(rows)
        self.times.reset(rows)
        self.touches.reset(rows)
        self._free.assign(tf.concat([self._free.read_value(), rows], 0))

    def touch(self, rows: tf.Tensor, counts: tf.Tensor) -> None:
        """Notes that rows are trained on in this step, each so often."""
        now = self.step.read_value()
        self.times.update(rows, tf.fill(tf.shape(rows), now))
        self.touches.add(rows, counts)

    def clear(self) -> None:
        """Forgets all rows."""
        self._expected.clear()
        for rows in (self.variable.table, self.times, self.touches, *self.slots().values()):
            rows.clear()
        self._free.assign(tf.zeros([0], tf.int64))
        self.view.length.assign(0)
        self.view.show(tf.zeros([0], tf.int64))

    def slots(self) -> dict[str, Rows]:
        """Returns the slot variables' rows by name, those that are yet to be made as well."""
        made = {name: slot.table for name, slot in self.variable.slots.items()}
        return {**made, **self._expected}

    def expected_slot(self, name: str) -> Rows:
        """Returns the rows of a slot variable; the optimizer may make it later."""
        if name not in self.slots():
            self._expected[name] = Rows((self.width,), tf.float32, fill=0.0)
        return self.slots()[name]

    def _slot_made(self, name: str, slot: RowVariable) -> None:
        if name in self._expected:
            rows = self._expected.pop(name)
            rows.fill = slot.table.fill
            slot.table = rows
            with tf.init_scope():
                rows.reset(self._free.read_value())

    def row_bytes(self) -> int:
        """Returns the bytes that one row takes, with its slot variables and its id's place."""
        arrays = [self.variable.table, self.times, self.touches, *self.slots().values()]
        return MAP_ENTRY + sum(math.prod(array.shape) * array.dtype.size for array in arrays)

    def used(self) -> tf.Tensor:
        """Returns how many rows ids have, int64."""
        return self.view.length.read_value() - tf.size(self._free.read_value(), tf.int64)
