"""Training where a worker waits for its own changes, and for nobody else's."""

from __future__ import annotations

import numpy as np

from strategies.ps.client import Servers
from strategies.ps.push import Push
from strategies.ps.step_program import StepProgram


class HalfAsync:
    """Makes a worker's changes in each of its steps, and goes on from what came of them.

    Staleness: of a worker's own steps none is missing from what it computes with; of another
    worker's, those that were sent while it computed.

    Args:
      servers: of the job.
    """

    def __init__(self, servers: Servers):
        self._servers = servers

    def step(self, program: StepProgram, push: Push) -> list[np.ndarray]:
        """Sends a step's changes and returns the variables' new values."""
        changed = self._servers.each(lambda server: program.push_and_pull(push, server))
        return [vector for vectors in changed for vector in vectors]

    def drain(self) -> None:
        """Does nothing: no step is on its way."""
