"""Conditions that a step's values have to meet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def assert_in_step(condition: tf.Tensor, data: Sequence[Any]) -> tf.Operation | None:
    """Returns an operation that ends the step unless a condition holds; eagerly, ends it at once.

    `tf.debugging.Assert` puts the check in a `tf.cond` inside of functions. Its two branches are
    functions as well, which take longer to trace, and longer in each step, than the check itself.

    >>> assert_in_step(tf.constant(True), ["never seen"])
    >>> try:
    ...     assert_in_step(tf.constant(False), ["Received:", 3])
    ... except tf.errors.InvalidArgumentError as error:
    ...     print("Received:" in error.message)
    True

    Args:
      condition: a scalar.
      data: text and tensors for the message; of each tensor three values are shown.

    Raises:
      tf.errors.InvalidArgumentError: if the condition is false.
    """
    return tf.raw_ops.Assert(condition=condition, data=list(data))
