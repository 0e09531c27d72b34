"""Storage of the rows of one shard: their values, slot variables and metadata."""

from __future__ import annotations

import math
from collections.abc import Callable

import tensorflow as tf

from strategies.compat.tensorflow import ResourceVariable
from strategies.embedding.shard.insertion_log import InsertionLog
from strategies.embedding.shard.row_metadata import RowMetadata
from strategies.utils.devices import HOST
from strategies.variables.growable_array import GrowableArray
from strategies.variables.row_variable import RowVariable
from tf_config.capacity import MAP_ENTRY


class RowStore:
    """Store of the rows of a group's tables; freed rows are reused.

    Args:
      variable: variable of the rows' values, with its slot variables.

    Attributes:
      variable: variable of the rows' values, with its slot variables.
      view: rows that the optimizer sees.
      metadata: last step and frequency of each row.
      insertions: log of the ids that get rows in training.
    """

    def __init__(self, variable: RowVariable):
        self.width = int(variable.shape[-1])
        self.view = variable.view
        self.variable = variable
        self._expected: dict[str, GrowableArray] = {}
        self.metadata = RowMetadata(self.view.expected)
        self.insertions = InsertionLog()
        with tf.init_scope(), tf.device(HOST):
            self._free = ResourceVariable(tf.zeros([0], tf.int64), trainable=False, shape=[None])

    def allocate(self, count: tf.Tensor) -> tf.Tensor:
        """Allocates rows; returns their numbers, int64 [count]."""
        with tf.device(HOST):
            free, before = self._free.read_value(), self.view.length.read_value()
            reused = free[:count]
            length = before + count - tf.size(reused, tf.int64)
            self._free.assign(free[count:])
            self.view.grow(length)
            for rows in (self.variable.table, self.metadata.array):
                rows.resize(length)
            for slot in self.slots().values():
                slot.reset(reused)  # once more: a gradient may have been applied after `free`
            return tf.concat([reused, tf.range(before, length)], 0)

    def free(self, rows: tf.Tensor) -> None:
        """Frees rows and resets their slot variables and metadata."""
        for slot in self.slots().values():
            slot.reset(rows)
        self.metadata.array.reset(rows)
        self.view.mark_freed(rows)
        self._free.assign(tf.concat([self._free.read_value(), rows], 0))

    def tokens(self) -> list[tf.Tensor]:
        """Returns small tensors that depend on all changes of the store so far in the program."""
        none = tf.zeros([0], tf.int64)
        arrays = [self.variable.table, self.metadata.array, *self.slots().values()]
        with tf.device(HOST):
            sizes = [tf.size(self._free.read_value()), tf.size(self.view.unapplied_rows())]
            return [
                *(array.gather(none) for array in arrays),
                *sizes,
                self.view.length.read_value(),
            ]

    def touch(self, rows: tf.Tensor, counts: tf.Tensor) -> None:
        """Records that this step trains on distinct rows, and how often on each."""
        self.metadata.touch(rows, self.step.read_value(), counts)

    def trained_since(self, step: tf.Tensor) -> tf.Tensor:
        """Returns the numbers of the rows that were trained on after a step, int64 [n]."""
        last_step = self.metadata.last_step.gather(tf.range(self.metadata.array.length()))
        return tf.where(last_step > step)[:, 0]

    def clear(self) -> None:
        """Removes all rows."""
        self.view.mark_freed(tf.range(self.view.length.read_value()))
        for rows in (self.variable.table, self.metadata.array, *self.slots().values()):
            rows.clear()
        self._free.assign(tf.zeros([0], tf.int64))
        self.view.length.assign(0)
        self.view.show(tf.zeros([0], tf.int64))

    def slots(self) -> dict[str, GrowableArray]:
        """Returns the arrays of the slot variables by name, including expected ones."""
        existing = {name: slot.table for name, slot in self.variable.slots.items()}
        return {**existing, **self._expected}

    def saved_slots(self) -> dict[str, str]:
        """Returns the names of the slot variables to save, by their names in the file.

        The slot variables of a deleted optimizer are omitted if a later optimizer has its own.
        Otherwise, a restore would give them to the next optimizer.
        """
        slots = self.slots()
        kept = [key for key in slots if not self.variable.is_former_slot(key)]
        if slots and not kept:
            optimizers = self.variable.optimizers
            last = optimizers[list(slots)[-1]]
            kept = [key for key in slots if optimizers[key] is last]
        saved: dict[str, str] = {}
        for key in sorted(kept, key=len):
            name = key.rstrip("_")
            while name in saved:  # the slot variable of another optimizer
                name += "_"
            saved[name] = key
        return saved

    def expect_slot(self, saved_name: str, make: Callable[[str], GrowableArray]) -> None:
        """Creates a slot variable's array, which the optimizer may adopt, unless it exists.

        Args:
          saved_name: name of the slot variable in a file.
          make: returns a new array, given the name that the slot variable will have.
        """
        name = saved_name.rstrip("_")
        keys = [key for key in self.slots() if key.rstrip("_") == name]
        current = [key for key in keys if not self.variable.is_former_slot(key)]
        for _ in range(1 + len(saved_name) - len(name) - len(current)):
            key = name + "_" * len(keys)
            self._expected[key] = make(key)
            keys.append(key)

    def forget_expected_slots(self) -> None:
        """Drops the arrays of slot variables that the optimizer has not created."""
        self._expected.clear()

    def adopt_slot(self, name: str, slot: RowVariable) -> bool:
        """Gives a new slot variable its expected array; returns whether there was one."""
        is_expected = name in self._expected
        if is_expected:
            slot.adopt_array(self._expected.pop(name))
        return is_expected

    def reset_free_rows(self, name: str) -> None:
        """Resets the free rows of a slot variable to its initial value."""
        self.slots()[name].reset(self._free.read_value())

    @property
    def step(self) -> tf.Variable:
        """Number of training steps so far."""
        return self.view.step

    def set_step(self, step: tf.Tensor) -> None:
        """Sets the number of training steps so far."""
        self.step.assign(step)

    def row_bytes(self) -> int:
        """Returns the size of one row in bytes, including slot variables, metadata and id."""
        arrays = [self.variable.table, self.metadata.array, *self.slots().values()]
        return (
            MAP_ENTRY
            + self.view.row_bytes()
            + sum(math.prod(array.shape) * array.dtype.size for array in arrays)
        )
