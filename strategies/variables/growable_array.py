"""Arrays in host memory that grow by rows."""

from __future__ import annotations

import math
import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.compat.tensorflow import ResourceVariable
from strategies.utils.assertions import assert_in_step
from strategies.utils.devices import HOST
from strategies.variables.restart_marks import mark_rows_in_use

# The shapes of new tensors are int32.
_MAX_ROWS = 2**31 - 1
# Number of rows that are copied or filled at once when an array grows.
_CHUNK = 65536


# Of the memory that arrays of unknown size may reserve together, the first ones get equal shares.
_EQUAL_SHARES = 12
_unbounded: weakref.WeakSet[GrowableArray] = weakref.WeakSet()


def _share(count: int) -> float:
    """Returns the part of the machine's memory that the array number `count` may reserve.

    All shares together are less than the memory, however many arrays there are.

    >>> round(1 / _share(1)), round(1 / _share(12)), round(1 / _share(24))
    (24, 24, 96)
    >>> sum(_share(count) for count in range(1, 10_000)) < 1
    True
    """
    return min(1.0, (_EQUAL_SHARES / count) ** 2) / (2 * _EQUAL_SHARES)


def _capacities(row_bytes: int, expected: int | None, count: int = 1) -> list[int]:
    """Returns the capacities, in rows, that an array grows to before it doubles.

    TensorFlow does not return freed memory to the system, so when an array grows by copying, the
    memory of its smaller copies is lost. If Linux overcommits memory, reserved memory takes no
    space until it is written to. So an array that is not small reserves its expected size, or a
    fraction of the machine's memory. The fraction is small because oneDNN's allocator in TensorFlow
    cannot reserve more memory in a process than the machine has, whether it is used or not.

    Args:
      row_bytes: size of one row in bytes.
      expected: expected number of rows; None if unknown.
      count: number of arrays of unknown size that exist, including this one.
    """
    rule = Path("/proc/sys/vm/overcommit_memory")
    if rule.exists() and rule.read_text().strip() == "2":
        return [(1 << 16) // row_bytes]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    capacities = [size // row_bytes for size in (1 << 16, 1 << 20, 1 << 24)]
    if expected is None:
        return [*capacities, max(int(memory * _share(count)), 1 << 25) // row_bytes]
    if expected * row_bytes <= memory // 8:
        return [*(rows for rows in capacities if rows < expected), expected]
    # Doubles up to the expected number of rows.
    large = memory // 8 // row_bytes
    while large < expected:
        capacities.append(large)
        large *= 2
    return [*capacities, expected]


class GrowableArray:
    """Array in host memory that grows by rows; reserved rows take no memory until written to.

    Args:
      shape: shape of one row.
      dtype: dtype of the elements.
      fill: initial value of new rows; None leaves them uninitialized.
      expected: expected number of rows; None if unknown.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: tf.DType,
        fill: Any = None,
        expected: int | None = None,
    ):
        self.shape = shape
        self.dtype = tf.as_dtype(dtype)
        if expected is None:
            _unbounded.add(self)
        row_bytes = self.dtype.size * max(math.prod(shape), 1)
        self._capacities = _capacities(row_bytes, expected, len(_unbounded))
        self.fill = None if fill is None else np.broadcast_to(fill, shape)
        with tf.init_scope(), tf.device(HOST):
            self._array = ResourceVariable(
                tf.zeros([0, *shape], self.dtype), trainable=False, shape=[None, *shape]
            )
            self._length = ResourceVariable(tf.constant(0, tf.int64), trainable=False)
            mark_rows_in_use(self._array, self._length)
        # Functions keep graphs small: their bodies are long, and are called in many places. The
        # one that few steps call is not inlined, because a step goes through all operations of a
        # branch that it does not take, if they are a part of its graph.
        self._resize_in_graph = tf.function(self._resize, autograph=False)
        self._extend_in_graph = tf.function(
            self._extend, autograph=False, experimental_attributes={"_noinline": True}
        )

    def resize(self, length: tf.Tensor) -> None:
        """Grows to at least `length` rows."""
        fill = None if self.fill is None else self._initial_row()
        (self._resize if tf.executing_eagerly() else self._resize_in_graph)(length, fill)

    def _resize(self, length: tf.Tensor, fill: tf.Tensor | None) -> None:
        with tf.device(HOST):
            current = self._length.read_value()
            extend = self._extend if tf.executing_eagerly() else self._extend_in_graph
            tf.cond(length > current, lambda: extend(length, fill), lambda: False)

    def length(self) -> tf.Tensor:
        """Returns the number of rows, int64."""
        with tf.device(HOST):
            return self._length.read_value()

    def append(self, values: tf.Tensor) -> None:
        """Adds rows behind the others."""
        before = self.length()
        length = before + tf.shape(values, tf.int64)[0]
        self.resize(length)
        self.update(tf.range(before, length), values)

    def gather(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns rows by their numbers."""
        with tf.device(HOST):
            # Not `sparse_read`, because Keras's `export` would save the variable that it reads.
            values = tf.raw_ops.ResourceGather(
                resource=self._array.handle, indices=rows, dtype=self.dtype
            )
        return tf.ensure_shape(values, [*rows.shape, *self.shape])

    def update(self, rows: tf.Tensor, values: tf.Tensor) -> None:
        """Sets distinct rows."""
        with tf.device(HOST):
            # Copies row by row. Operations that add to rows take several times as long.
            tf.raw_ops.ResourceScatterUpdate(
                resource=self._array.handle, indices=rows, updates=tf.cast(values, self.dtype)
            )

    def train(self, rows: tf.Tensor, values: tf.Tensor) -> None:
        """Sets distinct rows to values that an optimizer has computed."""
        self.update(rows, values)

    def add(self, rows: tf.Tensor, values: tf.Tensor) -> None:
        """Adds values that an optimizer has computed to distinct rows."""
        with tf.device(HOST):
            rows_before = self.gather(rows)
            self.train(rows, rows_before + tf.cast(values, rows_before.dtype))

    def reset(self, rows: tf.Tensor) -> None:
        """Resets rows to the initial value; rows beyond the array's length are skipped."""
        existing = tf.boolean_mask(rows, rows < self._length.read_value())
        self.update(existing, self._tile(self._initial_row(), tf.size(existing)))

    def clear(self) -> None:
        """Removes all rows."""
        self._array.assign(tf.zeros([0, *self.shape], self.dtype))
        self._length.assign(0)

    def _initial_row(self) -> tf.Tensor:
        return tf.cast(tf.constant(self.fill), self.dtype)

    def _tile(self, row: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        return tf.tile(row[tf.newaxis], [count, *[1] * len(self.shape)])

    def _extend(self, length: tf.Tensor, fill: tf.Tensor | None) -> bool:
        # The length is the number of rows in use, and the capacity that of the variable's rows.
        used = self._length.read_value()
        capacity = tf.raw_ops.VariableShape(input=self._array.handle, out_type=tf.int64)[0]
        tf.cond(length > capacity, lambda: self._reallocate(used, length, capacity), lambda: False)
        if fill is not None:

            def fill_chunk(start: tf.Tensor) -> tuple[tf.Tensor]:
                stop = tf.minimum(start + _CHUNK, length)
                count = tf.cast(stop - start, tf.int32)
                self.update(tf.range(start, stop), self._tile(fill, count))
                return (stop,)

            tf.while_loop(lambda start: start < length, fill_chunk, [used])
        self._length.assign(length)
        return True

    def _reallocate(self, used: tf.Tensor, length: tf.Tensor, capacity: tf.Tensor) -> bool:
        """Copies the rows to an array of larger capacity, whose other rows take no memory yet."""
        capacity = tf.maximum(length, 2 * capacity)
        for rows in reversed(self._capacities):
            capacity = tf.where(length <= rows, tf.constant(rows, tf.int64), capacity)
        capacity = tf.minimum(capacity, _MAX_ROWS)
        message = f"A shard cannot have more than {_MAX_ROWS} rows. Use more workers. Received:"
        assert_in_step(length <= capacity, [message, length])
        shape = tf.stack([tf.cast(capacity, tf.int32), *self.shape])
        # After an update of rows, the variable copies its value whenever it is read or assigned,
        # and would write to the whole capacity.
        tf.raw_ops.DisableCopyOnRead(resource=self._array.handle)
        old = self._array.read_value()
        larger = tf.raw_ops.Empty(shape=shape, dtype=self.dtype, init=False)

        def copy_chunk(start: tf.Tensor, larger: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            stop = tf.minimum(start + _CHUNK, used)
            rows = tf.range(start, stop)
            part = tf.gather(old, rows)
            larger = tf.raw_ops.InplaceUpdate(x=larger, i=tf.cast(rows, tf.int32), v=part)
            return stop, tf.ensure_shape(larger, [None, *self.shape])

        larger = tf.ensure_shape(larger, [None, *self.shape])
        _, larger = tf.while_loop(
            lambda start, _: start < used, copy_chunk, [tf.constant(0, tf.int64), larger]
        )
        self._array.assign(larger, read_value=False)
        return True
