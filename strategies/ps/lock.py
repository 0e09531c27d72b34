"""A lock on a server that detects changes that were not completed under it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

# The end of the name of the variable that exists while a change is being made.
CHANGE = "/change"
INCOMPLETE_CHANGE = "A change under this lock was begun and not completed"


class Lock:
    """A lock on a server, under which operations are atomic.

    When a worker's connection breaks, TensorFlow cancels the operations that a server runs for it,
    at the next function call or queue operation. If that leaves a change incomplete, all later
    operations under the lock fail, so that no worker reads half of a change. Rust's
    `std::sync::Mutex` calls such a lock poisoned.

    Locks of the same name on a server are the same lock. Create it in the graph of a server.

    Args:
      name: the lock's name.
    """

    def __init__(self, name: str):
        self._mutex = tf.raw_ops.MutexV2(shared_name=name)
        # This variable exists while a change is being made.
        self._change = tf.raw_ops.VarHandleOp(
            dtype=tf.bool, shape=[], shared_name=f"{name}{CHANGE}"
        )

    def call(
        self, body: Callable[[], Sequence[tf.Tensor]], changes: bool
    ) -> tuple[tf.Operation, list[Any]]:
        """Adds the operations of `body` to the graph as one atomic operation.

        Its arguments are sent before it takes the lock, so a worker that dies never holds a lock.

        Args:
          body: creates operations and returns tensors.
          changes: whether the operations change anything on the server.

        Returns:
          The operation and its results.
        """

        @tf.function(autograph=False)
        def call_body() -> list[tf.Tensor]:
            is_changed = tf.raw_ops.VarIsInitializedOp(resource=self._change)
            begun = [tf.debugging.Assert(~is_changed, [INCOMPLETE_CHANGE])]
            if changes:
                with tf.control_dependencies(begun):
                    true = tf.constant(True)
                    begun = [tf.raw_ops.AssignVariableOp(resource=self._change, value=true)]
            operations = tf.compat.v1.get_default_graph().get_operations
            before = len(operations())
            with tf.control_dependencies(begun):
                results = [*body()]
            if changes:
                with tf.control_dependencies(operations()[before:]):
                    tf.raw_ops.DestroyResourceOp(resource=self._change)
            return [*results, tf.constant(0)]

        @tf.function(autograph=False)
        def call_under_lock() -> list[tf.Tensor]:
            lock = tf.raw_ops.MutexLock(mutex=self._mutex)
            with tf.control_dependencies([lock]):
                results = call_body()
            # Wait for the call itself: its results may be ready before its last assignment.
            with tf.control_dependencies([results[0].op]):
                tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
            return results

        *results, done = call_under_lock()
        return done.op, results
