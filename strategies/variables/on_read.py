"""Variables that each replica keeps by itself, and that are reduced as they are read: metrics."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from strategies._tensorflow import SyncOnReadVariable


class OnReadVariable(SyncOnReadVariable):
    """A variable that a replica without rows in a step leaves as it is.

    A mean of no rows is not a number, and would be in a metric to the end of the epoch. Zeros are
    assigned all the same, for metrics are reset by them.
    """

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Sets the value, in a replica its own."""
        has_rows = self._has_rows()
        if has_rows is not None:
            value = tf.convert_to_tensor(value, self.dtype)
            value = tf.where(has_rows | (value == 0), value, self.value())
        return super().assign(value, *args, **kwargs)

    def assign_add(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Adds to the value, in a replica to its own."""
        return super().assign_add(self._of_rows(value), *args, **kwargs)

    def assign_sub(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Subtracts from the value, in a replica from its own."""
        return super().assign_sub(self._of_rows(value), *args, **kwargs)

    def _of_rows(self, value: Any) -> Any:
        has_rows = self._has_rows()
        if has_rows is None:
            return value
        value = tf.convert_to_tensor(value, self.dtype)
        return tf.where(has_rows, value, tf.zeros_like(value))

    def _has_rows(self) -> tf.Tensor | None:
        """Returns whether the calling replica has rows; None if it has, or that is not known."""
        if not self.dtype.is_floating or not self.shape.is_fully_defined():
            return None  # of no means
        strategy = self.distribute_strategy
        context = tf.distribute.get_replica_context()
        if context is None or context.strategy is not strategy:
            return None
        weight = strategy.extended.row_weight()
        is_known = weight is None or tf.get_static_value(weight) == 1
        return None if is_known else weight > 0
