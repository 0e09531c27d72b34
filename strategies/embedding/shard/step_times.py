"""When the steps of a table were, which turns seconds into steps."""

from __future__ import annotations

import tensorflow as tf

from strategies.compat.tensorflow import ResourceVariable
from strategies.utils.devices import HOST

_MICROSECONDS = 10**6
# Of the last `seconds`, at most two times are kept in each of so many parts.
_RESOLUTION = 64


class StepTimes:
    """Times of a table's steps, of which a limited number is kept.

    A pair of a time and a step says that this step and all before it began at or before this time.
    So no row is taken for an older one than it is, even if the clock was set back.

    >>> times = StepTimes(60)
    >>> for step, second in enumerate([0, 30, 60, 90]):
    ...     times.record(tf.constant(second * 10**6, tf.int64), tf.constant(step, tf.int64))
    >>> int(times.last_expired(tf.constant(100 * 10**6, tf.int64)))
    1

    Args:
      seconds: after how many seconds without use a row expires.
    """

    def __init__(self, seconds: float):
        self._lifetime = min(int(seconds * _MICROSECONDS), 2**62)
        with tf.init_scope(), tf.device(HOST):
            # Microseconds since 1970, and steps; in ascending order.
            self._pairs = ResourceVariable(
                tf.zeros([0, 2], tf.int64), trainable=False, shape=[None, 2]
            )

    @staticmethod
    def now() -> tf.Tensor:
        """Returns the time on the task that runs the operation, in microseconds since 1970."""
        with tf.device(HOST):
            return tf.cast(tf.timestamp() * _MICROSECONDS, tf.int64)

    def pairs(self) -> tf.Tensor:
        """Returns the times and steps, int64 [n, 2]."""
        with tf.device(HOST):
            return self._pairs.read_value()

    def restore(self, pairs: tf.Tensor) -> None:
        """Sets the times and steps, int64 [n, 2]."""
        self._pairs.assign(pairs)

    def clear(self) -> None:
        """Removes all times; the steps so far count as made when the next time is recorded."""
        self.restore(tf.zeros([0, 2], tf.int64))

    def record(self, now: tf.Tensor, step: tf.Tensor) -> None:
        """Records that a step and all before it have begun."""
        with tf.device(HOST):
            pairs = self._pairs.read_value()
            # The clock may have been set back, or be that of another machine since a restart.
            times = tf.minimum(pairs[:, 0], now)
            pairs = tf.stack([times, pairs[:, 1]], 1)
            # The last pair is replaced if the new one is still close to the one before it.
            size = tf.size(times)
            is_close = now - times[size - 2 : size - 1] < self._lifetime // _RESOLUTION
            is_replaced = (size > 1) & tf.reduce_any(is_close)
            pairs = pairs[: size - tf.cast(is_replaced, tf.int32)]
            pairs = tf.concat([pairs, tf.stack([now, step])[tf.newaxis]], 0)
            # Of the expired ones, the last is needed.
            expired = self._count_expired(pairs, now)
            self._pairs.assign(pairs[tf.maximum(expired - 1, 0) :])

    def last_expired(self, now: tf.Tensor) -> tf.Tensor:
        """Returns the last step that is known to be longer ago than a row lives; -1 for none."""
        with tf.device(HOST):
            pairs = self._pairs.read_value()
            steps = pairs[: self._count_expired(pairs, now), 1]
            return tf.reduce_max(tf.concat([[tf.constant(-1, tf.int64)], steps], 0))

    def _count_expired(self, pairs: tf.Tensor, now: tf.Tensor) -> tf.Tensor:
        return tf.math.count_nonzero(pairs[:, 0] <= now - self._lifetime, dtype=tf.int32)
