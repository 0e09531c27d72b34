"""Synchronous training: one update per step, from the gradients of all workers."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from strategies.collectives.health.operations import OperationTracker
from strategies.ps.barrier import Barrier
from strategies.ps.client import Server, Servers, leader
from strategies.ps.push import Push
from strategies.ps.step_program import StepProgram


class Sync:
    """Applies one update per step on each server; all workers continue with the new values.

    Gradients are already reduced and the same on all workers, so one worker sends them to each
    server: of N workers, the k-th sends them to servers k, k + N, ... If that worker has ended,
    the next one sends them.

    Staleness: none.

    Args:
      servers: the servers of the job.
      operations: tracks the operation that this worker is in.
    """

    def __init__(self, servers: Servers, operations: OperationTracker):
        self._servers = servers
        self._operations = operations
        self._present = {server.number: [True] * servers.size for server in servers.servers}

    def step(self, program: StepProgram, push: Push) -> list[np.ndarray]:
        """Sends the updates of a step and returns the variables' new values."""
        with self._operations.track_step("update on the parameter servers"):
            changed = self._servers.each(lambda server: self._update(server, program, push))
        return [vector for vectors in changed for vector in vectors]

    def drain(self) -> None:
        """Does nothing: no updates are pending."""

    def forget_pulled(self) -> None:
        """Does nothing: each step uses the values that it pulled."""

    def _update(self, server: Server, program: StepProgram, push: Push) -> list[np.ndarray]:
        changed = None
        while True:
            sender = leader(server.number, self._present[server.number])
            if sender == self._servers.rank:
                changed = program.push_and_pull(push, server)
            _, present = self._barrier(server)(0)
            self._present[server.number] = present.tolist()
            # A sender absent from the barrier had ended before it sent anything.
            if present[sender]:
                return program.pull(push, server) if changed is None else changed

    def _barrier(self, server: Server) -> Barrier:
        """Returns the barrier that all workers pass when a server has been updated."""
        name, servers = "changed", self._servers
        return server.once(
            name,
            lambda: Barrier(
                server, name, servers.rank, servers.size, tf.int32, 0,
                lambda inputs: [[]] * servers.size, [],
            ),
        )  # fmt: skip
