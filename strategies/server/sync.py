"""Synchronous training: one change a step, of all workers' gradients."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from strategies.server.connection import Server, Servers
from strategies.server.program import Program
from strategies.server.push import Push

_CAPACITY = 1 << 10


class Sync:
    """Makes each server's changes once a step; all workers go on from what came of them.

    Gradients come here reduced, the same on all workers, so one worker sends them: of N workers
    the k-th one to the servers k, k + N, ...

    Staleness: none.

    Args:
      servers: of the job.
    """

    def __init__(self, servers: Servers):
        self._servers = servers

    def step(self, program: Program, push: Push) -> list[np.ndarray]:
        """Sends a step's changes and returns the variables' new values."""
        changed = self._servers.each(lambda server: self._at(server, program, push))
        return [vector for vectors in changed for vector in vectors]

    def drain(self) -> None:
        """Does nothing: no step is on its way."""

    def _at(self, server: Server, program: Program, push: Push) -> list[np.ndarray]:
        tell, hear = self._news(server)
        if server.number % self._servers.size != self._servers.rank:
            server.run(hear)
            return program.pull(server)
        changed = program.push_and_pull(push, server)
        server.run(tell)
        return changed

    def _news(self, server: Server) -> tuple[tf.Operation, tf.Tensor]:
        """Returns what tells all others that a server has changed, and what waits for it."""

        def build() -> tuple[tf.Operation, tf.Tensor]:
            queues = [
                tf.queue.FIFOQueue(_CAPACITY, [tf.int32], [()], shared_name=f"changed/{rank}")
                for rank in range(self._servers.size)
            ]
            others = [q for rank, q in enumerate(queues) if rank != self._servers.rank]
            return tf.group(*(q.enqueue(1) for q in others)), queues[self._servers.rank].dequeue()

        return server.once("changed", build)
