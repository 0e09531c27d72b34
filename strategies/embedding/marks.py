"""When rows were trained on last, and how often: both in one number, which is found at once."""

from __future__ import annotations

import tensorflow as tf

from strategies.embedding.config import MOST_TOUCHES
from strategies.row_array import Rows

# The lower bits say how often, those above in which step.
_BITS = MOST_TOUCHES.bit_length()


class Marks:
    """What is noted of each row: the step that it was trained on last in, and how often.

    Args:
      expected: how many rows there will be, None if nobody knows.
    """

    def __init__(self, expected: int | None = None):
        self.array = Rows((), tf.int64, fill=0, expected=expected)
        self.times = Times(self.array)
        self.touches = Touches(self.array)

    def touch(self, rows: tf.Tensor, now: tf.Tensor, counts: tf.Tensor) -> None:
        """Notes that rows, each named once, are trained on in this step, each so often."""
        before = tf.bitwise.bitwise_and(self.array.gather(rows), MOST_TOUCHES)
        self.array.update(rows, _joined(now, before + counts))


class Times:
    """In which step rows were trained on last, int64, as an array of rows.

    Args:
      array: of `Marks`.
    """

    def __init__(self, array: Rows):
        self._array = array
        self.resize = array.resize

    def gather(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns the steps of rows."""
        return tf.bitwise.right_shift(self._array.gather(rows), tf.constant(_BITS, tf.int64))

    def update(self, rows: tf.Tensor, values: tf.Tensor) -> None:
        """Sets the steps of rows, each named once."""
        touches = tf.bitwise.bitwise_and(self._array.gather(rows), MOST_TOUCHES)
        self._array.update(rows, _joined(tf.cast(values, tf.int64), touches))


class Touches:
    """How often rows were trained on, int32, as an array of rows; no more is counted than is told.

    Args:
      array: of `Marks`.
    """

    def __init__(self, array: Rows):
        self._array = array
        self.resize = array.resize

    def gather(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns how often rows were trained on."""
        return tf.cast(tf.bitwise.bitwise_and(self._array.gather(rows), MOST_TOUCHES), tf.int32)

    def update(self, rows: tf.Tensor, values: tf.Tensor) -> None:
        """Sets how often rows were trained on, each named once."""
        times = tf.bitwise.right_shift(self._array.gather(rows), tf.constant(_BITS, tf.int64))
        self._array.update(rows, _joined(times, tf.cast(values, tf.int64)))


def _joined(times: tf.Tensor, touches: tf.Tensor) -> tf.Tensor:
    # A row that comes in each example would reach any bound; beyond this one nobody asks.
    return times * (MOST_TOUCHES + 1) + tf.clip_by_value(touches, 0, MOST_TOUCHES)
