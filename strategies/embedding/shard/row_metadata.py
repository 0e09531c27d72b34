"""When rows were trained on last, and how often: both in one number, which is found at once."""

from __future__ import annotations

import tensorflow as tf

from strategies.embedding.config import MOST_TOUCHES
from strategies.variables.growable_array import GrowableArray

# The lower bits say how often, those above in which step.
_BITS = MOST_TOUCHES.bit_length()
_MOST_TIMES = 2 ** (63 - _BITS) - 1


class RowMetadata:
    """What is noted of each row: the step that it was trained on last in, and how often.

    Args:
      expected: how many rows there will be, None if nobody knows.

    Attributes:
      array: both numbers of each row in one, int64.
      times: in which step rows were trained on last, int64, as an array of rows.
      touches: how often they were, int32, as an array of rows; no more is counted than is told.
    """

    def __init__(self, expected: int | None = None):
        self.array = GrowableArray((), tf.int64, fill=0, expected=expected)
        self.times = Bits(self.array, _BITS, _MOST_TIMES, tf.int64)
        self.touches = Bits(self.array, 0, MOST_TOUCHES, tf.int32)

    def touch(self, rows: tf.Tensor, now: tf.Tensor, counts: tf.Tensor) -> None:
        """Notes that rows, each named once, are trained on in this step, each so often."""
        counts += self.touches.of(self.array.gather(rows))
        self.array.update(rows, self.times.placed(now) + self.touches.placed(counts))


class Bits:
    """Some of the bits of an array's numbers, as an array of rows.

    Args:
      array: of one number a row, int64.
      first: how many bits are below these.
      most: the largest number that they hold, of which all bits are set.
      dtype: of what is returned.
    """

    def __init__(self, array: GrowableArray, first: int, most: int, dtype: tf.DType):
        self._array = array
        self._first = first
        self._most = most
        self._dtype = dtype
        self.resize = array.resize

    def gather(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns what they hold of rows."""
        return tf.cast(self.of(self._array.gather(rows)), self._dtype)

    def update(self, rows: tf.Tensor, values: tf.Tensor) -> None:
        """Sets them for rows, each named once."""
        numbers = self._array.gather(rows)
        others = numbers - self.placed(self.of(numbers))
        self._array.update(rows, others + self.placed(tf.cast(values, tf.int64)))

    def of(self, numbers: tf.Tensor) -> tf.Tensor:
        """Returns what they hold of numbers, int64."""
        return tf.bitwise.bitwise_and(tf.bitwise.right_shift(numbers, self._first), self._most)

    def placed(self, values: tf.Tensor) -> tf.Tensor:
        """Returns numbers of which these bits hold the values, and the others nothing."""
        # A row that comes in each example would reach any bound; beyond this one nobody asks.
        return tf.bitwise.left_shift(tf.clip_by_value(values, 0, self._most), self._first)
