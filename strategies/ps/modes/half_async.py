"""Half-asynchronous training: a worker waits only for its own updates."""

from __future__ import annotations

from strategies.ps.modes.base import Mode


class HalfAsync(Mode):
    """Applies a worker's updates in each of its steps; the next step uses the new values.

    Staleness: the values that a worker computes with lack none of its own steps. They lack another
    worker's steps that were sent while this worker computed.
    """
