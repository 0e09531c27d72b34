"""The numbers of a worker's calls, by which it knows what a server has done if answers are lost."""

from __future__ import annotations

import uuid

import tensorflow as tf


class LastNumber:
    """Number of the last of one worker's calls that a server has made; 0 before the first.

    Created in the graph of a server.
    """

    def __init__(self) -> None:
        name = f"last_number/{uuid.uuid4().hex}"
        self._handle = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[], shared_name=name)

    def set(self, number: tf.Tensor) -> tf.Operation:
        """Sets the number, int64."""
        return tf.raw_ops.AssignVariableOp(resource=self._handle, value=number)

    def value(self) -> tf.Tensor:
        """Returns the number, int64."""
        return tf.cond(
            tf.raw_ops.VarIsInitializedOp(resource=self._handle),
            lambda: tf.raw_ops.ReadVariableOp(resource=self._handle, dtype=tf.int64),
            lambda: tf.constant(0, tf.int64),
        )
