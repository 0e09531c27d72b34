"""Synchronous training: one update per step, from the gradients of all workers."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from strategies.ps.barrier import Barrier
from strategies.ps.connection import ServerConnection, ServerGroup, leader
from strategies.ps.modes.base import Mode
from strategies.ps.push import Push
from strategies.ps.server_program import StepProgram


class Sync(Mode):
    """Applies one update per step on each server; all workers continue with the new values.

    Gradients are already reduced and the same on all workers, so one worker sends them to each
    server: of N workers, the k-th sends them to servers k, k + N, ... If that worker has ended,
    the next one sends them.

    [Note: who sends the update]
    Exactly one worker must send, and workers do not communicate to find out which. Each computes it
    from the set of workers that were present at the last barrier of this server, which is the same
    on all of them. If the sender has ended since, it is missing at the next barrier. Then the
    update has not been sent, all workers know this, and all try again with the next sender. A
    worker that is killed instead is never missing, because only a worker that ends by itself sets
    its state to LEFT: the others wait for it until the watchdog or the launcher ends them.

    Staleness: none.

    Args:
      servers: the servers of the job.
    """

    in_step = True

    def __init__(self, servers: ServerGroup):
        super().__init__(servers)
        self._present = {server.number: [True] * servers.size for server in servers.servers}

    def step(self, program: StepProgram, push: Push) -> list[np.ndarray]:
        """Sends the updates of a step and returns the variables' new values."""
        with self._servers.operations.track_step("update on the parameter servers"):
            return self._collect(lambda server: self._update(server, program, push))

    def _update(
        self, server: ServerConnection, program: StepProgram, push: Push
    ) -> list[np.ndarray]:
        while True:
            # See [Note: who sends the update].
            sender = leader(server.number, self._present[server.number])
            sends = sender == self._servers.rank
            feeds = (program.feeds if sends else program.local_feeds)(push, server.number)
            values, present = self._barrier(server, program, sends)(0, feeds)
            self._present[server.number] = present.tolist()
            if present[sender]:
                return values

    def _barrier(self, server: ServerConnection, program: StepProgram, sends: bool) -> Barrier:
        """Returns the barrier that all workers pass when a server has been updated.

        The worker that sends the updates arrives once they are applied, and all workers get the new
        values. This takes a single call per worker.
        """
        size = self._servers.size

        def build() -> Barrier:
            of_server = program.program_on(server)
            return Barrier(
                server, "updated", self._servers.rank, size, tf.int32, 0,
                lambda _: [[]] * size, [],
                before=[of_server.push] if sends else [],
                after=lambda: of_server.push_and_pull if sends else program.add_pull(server),
                after_again=of_server.pull,
            )  # fmt: skip

        return server.build_once(build)
