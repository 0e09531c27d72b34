"""Sequence numbers of a worker's calls, with which a server makes each change exactly once.

[Note: exactly-once updates]
If a connection breaks after a server has received a call, TensorFlow sends the call again, and the
server rejects it because it has already received it. So the worker knows that the call arrived, but
neither whether it was completed nor what it returned: `ResponseLostError`. What happens next
depends on the call.

* A call that only reads is repeated (`idempotent=True`).
* A push is repeated, too, because it has a number, and the server compares the number with the one
  that it has stored for this worker and program (`SequenceNumber.change_once`). Repeating a push
  that was completed changes nothing and returns the current values.
* At a barrier, a worker deposits its value and takes the results out of its queue. Both have
  numbers, and the results are kept on the server until the worker takes the next ones; see
  `Barrier.__call__`.
* Other calls end the worker with the error.

This requires that
* the number is set in the critical section of the change. If the connection breaks in the middle of
  it, TensorFlow cancels the rest, and the lock refuses all later calls; see `Lock`.
* the numbers increase in the order in which calls arrive: only one thread makes calls of a program.
* a restarted worker has its own numbers, from 1: the name on the server is random.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import tensorflow as tf


class SequenceNumber:
    """The number of a worker's last call that a server has completed; 0 before the first.

    Create it in the graph of a server.
    """

    def __init__(self) -> None:
        name = f"last_number/{uuid.uuid4().hex}"
        self._handle = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[], shared_name=name)

    def set(self, number: tf.Tensor) -> tf.Operation:
        """Sets the number, int64."""
        return tf.raw_ops.AssignVariableOp(resource=self._handle, value=number)

    def change_once(self, number: tf.Tensor, change: Callable[[], Any]) -> None:
        """Makes a change and sets the number, unless the number shows that it was already made.

        Args:
          number: the number of the call, int64, larger than those of earlier calls.
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
