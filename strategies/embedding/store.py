"""Where one worker's rows are: their values, their slot variables, and when they were touched."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from strategies._tensorflow import ResourceVariable
from strategies.row_variable import HOST, Rows, RowVariable, View


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
            return tf.concat([again, tf.range(there, length)], 0)

    def free(self, rows: tf.Tensor) -> None:
        """Gives rows back; their slot variables are as if they were new."""
        for slot in self.variable.slots.values():
            slot.table.reset(rows)
        self.times.reset(rows)
        self.touches.reset(rows)
        self._free.assign(tf.concat([self._free.read_value(), rows], 0))

    def touch(self, rows: tf.Tensor, counts: tf.Tensor) -> None:
        """Notes that rows are trained on in this step, each so often."""
        now = self.step.read_value()
        self.times.update(rows, tf.fill(tf.shape(rows), now))
        self.touches.add(rows, counts)

    def used(self) -> tf.Tensor:
        """Returns how many rows ids have, int64."""
        return self.view.length.read_value() - tf.size(self._free.read_value(), tf.int64)
