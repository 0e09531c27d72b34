"""A barrier on a server at which the workers also exchange values."""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.ps.connection import ResponseLostError, ServerConnection
from strategies.ps.lock import Lock
from strategies.ps.membership import LEFT, worker_states
from strategies.ps.sequence_number import SequenceNumber

_CAPACITY = 1 << 20
_POLL_SECONDS = 0.5
# Computes each worker's results from the values of all workers.
Combine = Callable[[Sequence[tf.Tensor]], Sequence[Sequence[tf.Tensor]]]


class Barrier:
    """A reusable barrier that all workers pass together, each with a value.

    The last worker to arrive computes the results. The barrier does not wait for a worker that has
    ended or not joined yet, and takes no value from it, so the remaining workers continue. Workers
    that arrive later notice at once that a worker has ended; workers that already wait notice
    within a second.

    Barriers of the same name are the same barrier, even if `before` and `after` differ.

    In each round, each queue of inputs has at most one value, because a worker deposits its next
    value only after it has received the results of this round; and each queue of outputs gets one
    entry. So rounds need no numbers.

    A call fails if the server is lost meanwhile, even if the server is restarted in place: another
    worker may have got the results, and then it will not take part in this round again.

    Args:
      server: the server that holds the barrier.
      name: the barrier's name, the same on all workers.
      rank: this worker's rank.
      size: the number of workers.
      dtype: the dtype of the workers' values.
      missing_value: the value used for a worker that has ended.
      combine: computes each worker's results from the values of all workers.
      dtypes: the dtypes of a worker's results.
      lock: the lock to hold while the results are computed. None is a lock of the barrier's own.
      before: operations that run on the server before this worker arrives. They may run again if
        the connection breaks.
      after: adds operations that run on the server once all workers have arrived; the tensors that
        it returns are added to this worker's results.
      after_again: the tensors to use instead of those of `after` if the response was lost.
      is_elastic: whether another worker may take the place of one that has ended. Then there are no
        results for workers that were not present, and those that a former worker left are removed.
    """

    def __init__(
        self,
        server: ServerConnection,
        name: str,
        rank: int,
        size: int,
        dtype: tf.DType,
        missing_value: Any,
        combine: Combine,
        dtypes: Sequence[tf.DType],
        lock: Lock | None = None,
        before: Sequence[tf.Operation] = (),
        after: Callable[[], Sequence[tf.Tensor]] = tuple,
        after_again: Sequence[tf.Tensor] = (),
        is_elastic: bool = False,
    ):
        self._is_elastic = is_elastic
        self._run = functools.partial(server.run, survives_restarts=False)
        self._missing_value = functools.partial(tf.constant, missing_value, dtype)
        self._combine = combine
        with server.building():
            # Once per graph: TensorFlow would give a second variable another name and value.
            self._states = server.build_once(functools.partial(worker_states, size))
            lock = lock or Lock(f"{name}/lock")
            self._inputs = [
                tf.queue.FIFOQueue(_CAPACITY, [dtype], shared_name=f"{name}/inputs/{other}")
                for other in range(size)
            ]
            self._outputs = [
                tf.queue.FIFOQueue(
                    _CAPACITY, [*dtypes, tf.bool], shared_name=f"{name}/outputs/{other}"
                )
                for other in range(size)
            ]
            self._feed = tf.compat.v1.placeholder(dtype)
            self._number = tf.compat.v1.placeholder(tf.int64, [])
            self._numbers = itertools.count(1)
            arrived, taken = SequenceNumber(), SequenceNumber()

            def deposit() -> list[tf.Tensor]:
                enqueue = functools.partial(self._inputs[rank].enqueue, self._feed)
                arrived.change_once(self._number, enqueue)
                return self._release_if_complete()

            # Outside of the lock: `before` may take long, and may hold the lock of all updates.
            with tf.control_dependencies(before):
                self._deposit, _ = server.locked(deposit, lock)
            # Run by waiting workers, because a worker that ends does not release them.
            self._release, _ = server.locked(self._release_if_complete, lock)
            # Not under the lock, which other workers need to arrive.
            *results, self._present = tf.nest.flatten(self._outputs[rank].dequeue())
            with tf.control_dependencies([self._present]):
                self._results = [*results, *after()]
            # If the response is lost, the worker asks whether the results were taken from the
            # queue, and gets the copy that was kept; see [Note: exactly-once updates] in
            # ps/sequence_number.py.
            keep, kept = _keep([*results, self._present])
            with tf.control_dependencies(keep):
                self._take = taken.set(self._number)
            self._has_results = self._outputs[rank].size() > 0
            self._last_taken = taken.value()
            self._again = [*kept[:-1], *after_again], kept[-1]
            own = [self._inputs[rank], self._outputs[rank]] if is_elastic else []
            left = [(queue.size(), tf.group(*tf.nest.flatten(queue.dequeue()))) for queue in own]
        for size_of, remove in left:
            while self._run(size_of, idempotent=True):
                self._run(remove)

    def __call__(
        self, value: Any, feeds: Mapping[tf.Tensor, np.ndarray] | None = None
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """Waits for all workers; returns this worker's results and which workers were present.

        Args:
          value: this worker's value.
          feeds: arrays for the placeholders of `before` and `after`.
        """
        fetches = [self._results, self._present, self._deposit, self._take]
        number = next(self._numbers)
        feeds = {self._feed: value, self._number: np.array(number), **(feeds or {})}
        try:
            results, present, *_ = self._run(fetches, feeds, self._release)
        except ResponseLostError:
            # The connection may have broken before the value was deposited, between that and the
            # results, or after these were taken. Repeating each call below has no effect.
            self._run(self._deposit, feeds, idempotent=True)
            while self._run(self._last_taken, idempotent=True) != number:
                with contextlib.suppress(ResponseLostError):
                    self._take_if_there(feeds)
            results, present = self._run(self._again, feeds, idempotent=True)
        return results, present

    def _take_if_there(self, feeds: Mapping[tf.Tensor, Any]) -> None:
        """Takes the results from the queue if it has any; otherwise waits for a moment."""
        if self._run(self._has_results, idempotent=True):
            self._run(self._take, dict(feeds))
        else:
            self._run(self._release, idempotent=True)
            time.sleep(_POLL_SECONDS)

    def _release_if_complete(self) -> list[tf.Tensor]:
        """Combines the values and releases all workers, unless a value is missing.

        Called under the lock, so that nothing else accesses the queues of inputs. A worker that has
        left counts as present only if it deposited a value before it left. If there is no value at
        all, there is no round to complete: all workers may have left.
        """
        present = tf.stack([queue.size() > 0 for queue in self._inputs])
        # States from LEFT on are those of workers that nobody waits for.
        ready = tf.reduce_all(present | (self._states.read_value() >= LEFT)) & tf.reduce_any(
            present
        )

        def release() -> bool:
            inputs = [
                tf.cond(present[rank], queue.dequeue, self._missing_value)
                for rank, queue in enumerate(self._inputs)
            ]
            results = self._combine(inputs)
            enqueued = [
                self._enqueue(queue, [*result, present], present[rank])
                for rank, (queue, result) in enumerate(zip(self._outputs, results, strict=True))
            ]
            with tf.control_dependencies(enqueued):
                return tf.constant(True)

        return [tf.cond(ready, release, lambda: tf.constant(False))]

    def _enqueue(self, queue: tf.queue.FIFOQueue, entry: list[Any], is_present: Any) -> Any:
        if not self._is_elastic:
            return queue.enqueue(entry)

        def enqueue() -> tf.Tensor:
            with tf.control_dependencies([queue.enqueue(entry)]):
                return tf.constant(True)

        return tf.cond(is_present, enqueue, lambda: tf.constant(False))


def _keep(tensors: Sequence[tf.Tensor]) -> tuple[list[tf.Operation], list[tf.Tensor]]:
    """Returns operations that store tensors on a server, and the tensors that were stored last."""
    name = f"kept/{uuid.uuid4().hex}"
    keep, kept = [], []
    for number, tensor in enumerate(tensors):
        handle = tf.raw_ops.VarHandleOp(
            dtype=tensor.dtype, shape=tf.TensorShape(None), shared_name=f"{name}/{number}"
        )
        keep.append(tf.raw_ops.AssignVariableOp(resource=handle, value=tensor))
        kept.append(tf.raw_ops.ReadVariableOp(resource=handle, dtype=tensor.dtype))
    return keep, kept
