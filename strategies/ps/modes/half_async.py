"""Half-asynchronous training: a worker waits for its own updates only."""

from __future__ import annotations

import numpy as np

from strategies.ps.client import Servers
from strategies.ps.push import Push
from strategies.ps.step_program import StepProgram


class HalfAsync:
    """Applies a worker's updates in each of its steps, and goes on with the new values.

    Staleness: of a worker's own steps none is missing from what it computes with; of another
    worker's, those that were sent while it computed.

    Args:
      servers: of the job.
    """

    def __init__(self, servers: Servers):
        self._servers = servers

    def step(self, program: StepProgram, push: Push) -> list[np.ndarray]:
        """Sends the updates of a step and returns the variables' new values."""
        changed = self._servers.each(lambda server: program.push_and_pull(push, server))
        return [vector for vectors in changed for vector in vectors]

    def drain(self) -> None:
        """Does nothing: no updates are pending."""

    def forget_pulled(self) -> None:
        """Does nothing: a step goes on with what it pulled."""
