"""Assertions about the values of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def assert_in_step(condition: tf.Tensor, data: Sequence[Any]) -> tf.Operation | None:
    """Returns an operation that fails the step unless a condition holds; eagerly, raises at once.

    Use it if the message has tensors on the host with a dtype other than int32.
    `tf.debugging.Assert` assumes that such tensors are on a GPU, and in a `tf.function` wraps the
    check in a `tf.cond`, which costs two more functions to trace and to call.

    >>> assert_in_step(tf.constant(True), ["never seen"])
    >>> try:
    ...     assert_in_step(tf.constant(False), ["Received:", 3])
    ... except tf.errors.InvalidArgumentError as error:
    ...     print("Received:" in error.message)
    True

    Args:
      condition: a scalar.
      data: text and tensors for the message, which shows three values of each tensor.

    Raises:
      tf.errors.InvalidArgumentError: if the condition is false.
    """
    return tf.raw_ops.Assert(condition=condition, data=list(data))
