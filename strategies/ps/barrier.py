"""A barrier on a server: each worker brings something, and all take what came of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.ps.client import Server
from strategies.ps.membership import LEFT, states

_CAPACITY = 1 << 20
# For each worker what it takes, of what all brought.
Combine = Callable[[Sequence[tf.Tensor]], list[list[tf.Tensor]]]


class Barrier:
    """A point of a program that workers pass together, any number of times.

    Whoever comes last makes the results. A worker that has ended is not waited for, and brings
    nothing: so those that remain go on. That it has ended is noticed at once by who comes after,
    and within a second by who waits already.

    Args:
      server: where it is.
      name: of the barrier, the same on all workers.
      rank: of this worker.
      size: how many workers there are.
      dtype: of what they bring.
      nothing: stands for what a worker brings that has left.
      combine: gives each worker's results, from what all brought.
      dtypes: of a worker's results.
    """

    def __init__(
        self,
        server: Server,
        name: str,
        rank: int,
        size: int,
        dtype: tf.DType,
        nothing: float | str,
        combine: Combine,
        dtypes: Sequence[tf.DType],
    ):
        self._server = server
        self._nothing = functools.partial(tf.constant, nothing, dtype)
        self._combine = combine
        with server.building():
            # One in a graph, for it is known by its name.
            self._states = server.once("presence", lambda: states(size))
            self._mutex = tf.raw_ops.MutexV2(shared_name=f"{name}/mutex")
            self._brought = [
                tf.queue.FIFOQueue(_CAPACITY, [dtype], shared_name=f"{name}/brought/{other}")
                for other in range(size)
            ]
            self._taken = [
                tf.queue.FIFOQueue(
                    _CAPACITY, [*dtypes, tf.bool], shared_name=f"{name}/taken/{other}"
                )
                for other in range(size)
            ]
            self._feed = tf.compat.v1.placeholder(dtype)

            def bring() -> list[tf.Tensor]:
                with tf.control_dependencies([self._brought[rank].enqueue(self._feed)]):
                    return self._finish()

            self._bring, _ = server.locked(bring, self._mutex)
            self._look, _ = server.locked(self._finish, self._mutex)
            self._take = tf.nest.flatten(self._taken[rank].dequeue())

    def __call__(self, mine: Any) -> tuple[list[np.ndarray], np.ndarray]:
        """Returns what came of it for this worker, and for each worker whether it was here."""
        fetches = [self._take, self._bring]
        (*results, here), _ = self._server.run(fetches, {self._feed: mine}, self._look)
        return results, here

    def _finish(self) -> list[tf.Tensor]:
        """Makes the results, if nobody is waited for."""
        here = tf.stack([queue.size() > 0 for queue in self._brought])
        ready = tf.reduce_all(here | tf.equal(self._states.read_value(), LEFT)) & tf.reduce_any(
            here
        )

        def give() -> bool:
            brought = [
                tf.cond(here[rank], queue.dequeue, self._nothing)
                for rank, queue in enumerate(self._brought)
            ]
            results = self._combine(brought)
            given = [
                queue.enqueue([*mine, here])
                for queue, mine in zip(self._taken, results, strict=True)
            ]
            with tf.control_dependencies(given):
                return tf.constant(True)

        return [tf.cond(ready, give, lambda: tf.constant(False))]
