"""Workers of an elastic job that no longer report to a server."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from strategies.ps.membership import JOINING, PRESENT, Membership

SILENT_SECONDS = 60.0


class SilentWorkers:
    """Finds workers that have not reported for a while, because they or their hosts are gone.

    Only a worker that ends by itself tells the servers; the others would wait for one that was
    killed at the end of the epoch. A fixed number of workers is different: there, the launcher
    restarts the worker or ends the job.

    Args:
      membership: the connection to this server's states of workers.
      seconds: how long a worker may be silent.
      clock: returns the time in seconds.
    """

    def __init__(
        self,
        membership: Membership,
        seconds: float = SILENT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._seconds = seconds
        self._membership = membership
        self._clock = clock
        # The last report of each worker, and the time when it was first seen.
        self._last: dict[int, tuple[int, float]] = {}

    def find(self, states: Sequence[int]) -> list[int]:
        """Returns the ranks of the workers that are silent for too long."""
        now, silent = self._clock(), []
        for rank, (state, beat) in enumerate(zip(states, self._membership.beats(), strict=True)):
            last, since = self._last.get(rank, (-1, now))
            if state not in (PRESENT, JOINING) or beat != last:
                self._last[rank] = beat, now
            elif now - since >= self._seconds:
                silent.append(rank)
        return silent
