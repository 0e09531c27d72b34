"""Conditions that a step's values have to meet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def assert_in_step(condition: tf.Tensor, data: Sequence[Any]) -> tf.Operation | None:
    """Returns an operation that ends the step unless a condition holds; eagerly, ends it at once.

    For a message of numbers other than int32. `tf.debugging.Assert` takes these for tensors on a
    GPU, and inside of functions puts the check in a `tf.cond`, whose two branches are functions to
    trace and to call. Here they are on the host.

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
