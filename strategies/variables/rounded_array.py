"""Arrays of rows that are stored as bfloat16 and trained in float32.

[Note: stochastic rounding]
An update is often smaller than half the distance of two bfloat16 numbers, so that rounding to the
nearest one would lose it in each step. Stochastic rounding takes the upper or the lower neighbour
with probabilities that make the mean the exact value (Gupta et al., "Deep learning with limited
numerical precision", 2015; embedding rows in 16 bits: Zhang et al., "Training with low-precision
embedding tables", 2018).

The random bits are a hash of the row that is replaced, the step, and how often the array has been
written to in the step. So they do not depend on where a row is stored, and runs on different
numbers of workers round alike, as long as they do not differ otherwise. Nothing has to be stored
for them but the last step and the number of writes. That number is necessary: weight decay and an
update write to the same row in the same step, and with the same bits twice, the second rounding
would depend on the first.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from strategies.compat.tensorflow import ResourceVariable
from strategies.utils.devices import HOST
from strategies.utils.splitmix64 import GOLDEN, splitmix64
from strategies.variables.growable_array import GrowableArray
from strategies.variables.row_view import RowView

ROW_DTYPES = ("float32", "bfloat16")
_FRACTION = 16  # bits of a float32 that a bfloat16 lacks
_PER_WORD = 4  # numbers of 16 bits in an int64


class ArrayDtypes(NamedTuple):
    """Dtypes in which a table's rows and their slot variables are stored.

    Attributes:
      rows: dtype of the rows, one of `ROW_DTYPES`.
      slots: dtype of the slot variables.
    """

    rows: str = "float32"
    slots: str = "float32"


FLOAT32 = ArrayDtypes()


def make_array(width: int, dtype: str, view: RowView, fill: Any = None) -> GrowableArray:
    """Returns an array of rows that is read and written as float32.

    Args:
      width: width of a row.
      dtype: dtype in which the rows are stored, one of `ROW_DTYPES`.
      view: the rows that an optimizer sees.
      fill: initial value of new rows; None leaves them uninitialized.
    """
    if dtype == "float32":
        return GrowableArray((width,), tf.float32, fill, view.expected)
    return RoundedArray(width, view, fill)


class RoundedArray(GrowableArray):
    """Array of bfloat16 rows that an optimizer reads and writes as float32.

    What an optimizer writes is rounded stochastically; see [Note: stochastic rounding]. Other
    values, such as initial and restored ones, are rounded to the nearest number.

    Args:
      width: width of a row.
      view: the rows that the optimizer sees, which counts the steps.
      fill: initial value of new rows; None leaves them uninitialized.
    """

    def __init__(self, width: int, view: RowView, fill: Any = None):
        super().__init__((width,), tf.bfloat16, fill, view.expected)
        self._view = view
        with tf.init_scope(), tf.device(HOST):
            # The step of the last write by an optimizer, and how many came before it in this step.
            self._last_write = ResourceVariable(np.array([-1, 0], np.int64), trainable=False)

    def gather(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns rows by their numbers, float32."""
        return tf.cast(super().gather(rows), tf.float32)

    def train(self, rows: tf.Tensor, values: tf.Tensor) -> None:
        """Sets distinct rows to float32 values that an optimizer has computed."""
        with tf.device(HOST):
            replaced = super().gather(rows)
            self.update(rows, round_stochastically(values, replaced, self._next_write()))

    def _next_write(self) -> tf.Tensor:
        """Returns a number that differs in each write, int64, and is the same in each run."""
        step, (last, count) = self._view.step.read_value(), tf.unstack(self._last_write)
        count = tf.where(tf.equal(step, last), count + 1, 0)
        self._last_write.assign(tf.stack([step, count]), read_value=False)
        return splitmix64(step) + count


def round_stochastically(values: tf.Tensor, replaced: tf.Tensor, write: tf.Tensor) -> tf.Tensor:
    """Returns values as bfloat16, [n, width], each rounded up or down at random.

    >>> values, write = tf.constant([[1.0, -0.5, float("inf")]]), tf.constant(7, tf.int64)
    >>> rounded = round_stochastically(values, tf.zeros([1, 3], tf.bfloat16), write)
    >>> tf.cast(rounded, tf.float32).numpy().tolist()
    [[1.0, -0.5, inf]]

    Args:
      values: values, float32 [n, width].
      replaced: the rows that they replace, bfloat16 [n, width].
      write: a number that differs in each write, int64.
    """
    # Sign and magnitude are separate in a float, so bits that are added move it away from zero.
    bits = tf.bitcast(values, tf.int32) + _random_bits(replaced, write)
    rounded = tf.bitcast(tf.bitwise.bitwise_and(bits, -(2**_FRACTION)), tf.float32)
    return tf.cast(tf.where(tf.math.is_finite(values), rounded, values), tf.bfloat16)


def _random_bits(replaced: tf.Tensor, write: tf.Tensor) -> tf.Tensor:
    """Returns uniform numbers from 0 to 2**16 - 1, int32 [n, width]."""
    width = replaced.shape[1]
    words = -(-width // _PER_WORD)
    if width % _PER_WORD:
        replaced = tf.pad(replaced, [[0, 0], [0, words * _PER_WORD - width]])
    contents = tf.bitcast(tf.reshape(replaced, [-1, words, _PER_WORD]), tf.int64)
    columns = tf.range(1, words + 1, dtype=tf.int64) * GOLDEN
    keys = tf.reduce_sum(splitmix64(contents + columns), axis=1)
    random = splitmix64(splitmix64(keys ^ write)[:, tf.newaxis] + columns)
    numbers = tf.reshape(tf.bitcast(random, tf.uint16), [-1, words * _PER_WORD])
    return tf.cast(numbers[:, :width], tf.int32)
