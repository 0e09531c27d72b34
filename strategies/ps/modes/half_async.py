"""Half-asynchronous training: a worker waits only for its own updates."""

from __future__ import annotations

import numpy as np

from strategies.ps.connection import ServerGroup
from strategies.ps.push import Push
from strategies.ps.server_program import StepProgram


class HalfAsync:
    """Applies a worker's updates in each of its steps; the next step uses the new values.

    Staleness: the values that a worker computes with lack none of its own steps. They lack another
    worker's steps that were sent while this worker computed.

    Args:
      servers: the servers of the job.
    """

    def __init__(self, servers: ServerGroup):
        self._servers = servers

    def step(self, program: StepProgram, push: Push) -> list[np.ndarray]:
        """Sends the updates of a step and returns the variables' new values."""
        changed = self._servers.each(lambda server: program.push_and_pull(push, server))
        return [vector for vectors in changed for vector in vectors]

    def drain(self) -> None:
        """Does nothing: no updates are pending."""

    def forget_pulled(self) -> None:
        """Does nothing: each step uses the values that it pulled."""
