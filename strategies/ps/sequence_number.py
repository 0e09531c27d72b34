"""The numbers of a worker's calls, by which a server makes each of them once."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import tensorflow as tf


class SequenceNumber:
    """Number of the last of one worker's calls that a server has made; 0 before the first.

    Created in the graph of a server.
    """

    def __init__(self) -> None:
        name = f"last_number/{uuid.uuid4().hex}"
        self._handle = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[], shared_name=name)

    def set(self, number: tf.Tensor) -> tf.Operation:
        """Sets the number, int64."""
        return tf.raw_ops.AssignVariableOp(resource=self._handle, value=number)

    def change_once(self, number: tf.Tensor, change: Callable[[], Any]) -> None:
        """Makes a change and sets the number, unless the number shows that it has been made.

        Args:
          number: the number of the call, int64. It is larger than those of earlier calls.
          change: creates the operations of the change.
        """

        def make() -> tf.Tensor:
            change()
            self.set(number)
            return tf.constant(True)

        tf.cond(number > self.value(), make, lambda: tf.constant(False))

    def value(self) -> tf.Tensor:
        """Returns the number, int64."""
        return tf.cond(
            tf.raw_ops.VarIsInitializedOp(resource=self._handle),
            lambda: tf.raw_ops.ReadVariableOp(resource=self._handle, dtype=tf.int64),
            lambda: tf.constant(0, tf.int64),
        )
