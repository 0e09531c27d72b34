"""Metadata of rows: the last step that trained on each row, and how often it was trained on.

Both are packed into one number per row, so that one lookup reads both.
"""

from __future__ import annotations

import tensorflow as tf

from strategies.embedding.config import MAX_FREQUENCY
from strategies.variables.growable_array import GrowableArray

# The lower bits hold the frequency, the upper bits the step.
_FREQUENCY_BITS = MAX_FREQUENCY.bit_length()
_MAX_STEP = 2 ** (63 - _FREQUENCY_BITS) - 1


class RowMetadata:
    """Last step and frequency of each row.

    Args:
      expected: expected number of rows; None if unknown.

    Attributes:
      array: packed metadata of each row, int64.
      last_step: last step that trained on each row, int64, with the interface of an array of rows.
      frequency: number of times that each row was trained on, int32, with the same interface; it
        stops at `MAX_FREQUENCY`.
    """

    def __init__(self, expected: int | None = None):
        self.array = GrowableArray((), tf.int64, fill=0, expected=expected)
        self.last_step = BitField(self.array, _FREQUENCY_BITS, _MAX_STEP, tf.int64)
        self.frequency = BitField(self.array, 0, MAX_FREQUENCY, tf.int32)

    def touch(self, rows: tf.Tensor, step: tf.Tensor, counts: tf.Tensor) -> None:
        """Records that a step trains on distinct rows, and how often on each."""
        counts += self.frequency.decode(self.array.gather(rows))
        self.array.update(rows, self.last_step.encode(step) + self.frequency.encode(counts))

    def by_last_step(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns numbers that order rows by their last step, and then by their frequency."""
        return self.array.gather(rows)

    def by_frequency(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns numbers that order rows by their frequency, and then by their last step."""
        numbers = self.array.gather(rows)
        frequency = tf.bitwise.left_shift(self.frequency.decode(numbers), 63 - _FREQUENCY_BITS)
        return frequency + self.last_step.decode(numbers)


class BitField:
    """Field of some bits of an array's numbers, with the interface of an array of rows.

    Args:
      array: array of one number for each row, int64.
      offset: number of bits below the field.
      maximum: largest value of the field, with all its bits set.
      dtype: dtype of the values that `gather` returns.
    """

    def __init__(self, array: GrowableArray, offset: int, maximum: int, dtype: tf.DType):
        self._array = array
        self._offset = offset
        self._maximum = maximum
        self._dtype = dtype
        self.resize = array.resize

    def gather(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns the values of rows."""
        return tf.cast(self.decode(self._array.gather(rows)), self._dtype)

    def update(self, rows: tf.Tensor, values: tf.Tensor) -> None:
        """Sets the values of distinct rows."""
        numbers = self._array.gather(rows)
        others = numbers - self.encode(self.decode(numbers))
        self._array.update(rows, others + self.encode(tf.cast(values, tf.int64)))

    def decode(self, numbers: tf.Tensor) -> tf.Tensor:
        """Returns the values of the field in `numbers`, int64."""
        return tf.bitwise.bitwise_and(tf.bitwise.right_shift(numbers, self._offset), self._maximum)

    def encode(self, values: tf.Tensor) -> tf.Tensor:
        """Returns numbers with the values in this field and zeros elsewhere."""
        # Clipping suffices: no eviction rule can have a frequency above `MAX_FREQUENCY`.
        return tf.bitwise.left_shift(tf.clip_by_value(values, 0, self._maximum), self._offset)
