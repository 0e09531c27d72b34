"""A barrier on a server, at which the workers also exchange values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.ps.client import Server
from strategies.ps.membership import LEFT, worker_states

_CAPACITY = 1 << 20
# Makes the results of each worker, from the values of all.
Combine = Callable[[Sequence[tf.Tensor]], list[list[tf.Tensor]]]


class Barrier:
    """A barrier that workers pass together any number of times, with a value of each.

    The last worker to come makes the results. One that has ended is not waited for, and gives no
    value, so that those that remain go on. Workers that come later notice at once that it has
    ended, and those that wait already within a second.

    Args:
      server: holds the barrier.
      name: of the barrier, the same on all workers.
      rank: of this worker.
      size: the number of workers.
      dtype: of their values.
      missing_value: stands for the value of a worker that has ended.
      combine: makes the results of each worker, from the values of all.
      dtypes: of a worker's results.
    """

    def __init__(
        self,
        server: Server,
        name: str,
        rank: int,
        size: int,
        dtype: tf.DType,
        missing_value: float | str,
        combine: Combine,
        dtypes: Sequence[tf.DType],
    ):
        self._server = server
        self._missing_value = functools.partial(tf.constant, missing_value, dtype)
        self._combine = combine
        with server.building():
            # One in a graph, for it is known by its name.
            self._states = server.once("membership", lambda: worker_states(size))
            self._mutex = tf.raw_ops.MutexV2(shared_name=f"{name}/mutex")
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

            def deposit() -> list[tf.Tensor]:
                with tf.control_dependencies([self._inputs[rank].enqueue(self._feed)]):
                    return self._release_if_complete()

            self._deposit, _ = server.locked(deposit, self._mutex)
            self._release, _ = server.locked(self._release_if_complete, self._mutex)
            self._receive = tf.nest.flatten(self._outputs[rank].dequeue())

    def __call__(self, value: Any) -> tuple[list[np.ndarray], np.ndarray]:
        """Waits for all workers; returns this worker's results and which workers were present."""
        fetches = [self._receive, self._deposit]
        (*results, present), _ = self._server.run(fetches, {self._feed: value}, self._release)
        return results, present

    def _release_if_complete(self) -> list[tf.Tensor]:
        """Combines the values and releases all workers, if none is missing."""
        present = tf.stack([queue.size() > 0 for queue in self._inputs])
        ready = tf.reduce_all(present | tf.equal(self._states.read_value(), LEFT)) & tf.reduce_any(
            present
        )

        def release() -> bool:
            inputs = [
                tf.cond(present[rank], queue.dequeue, self._missing_value)
                for rank, queue in enumerate(self._inputs)
            ]
            results = self._combine(inputs)
            enqueued = [
                queue.enqueue([*result, present])
                for queue, result in zip(self._outputs, results, strict=True)
            ]
            with tf.control_dependencies(enqueued):
                return tf.constant(True)

        return [tf.cond(ready, release, lambda: tf.constant(False))]
