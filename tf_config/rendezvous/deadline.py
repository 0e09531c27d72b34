"""The time left in a rendezvous, and regular notes while it waits."""

from __future__ import annotations

import time
from collections.abc import Callable

_NOTE_SECONDS = 5.0
_POLL_SECONDS = 0.05


class Deadline:
    """A timeout, with a note every 5 seconds.

    Args:
      timeout: the number of seconds in total.
      note: receives the notes.
    """

    def __init__(self, timeout: float, note: Callable[[str], None]):
        self.timeout = timeout
        self.note = note
        self._end = time.monotonic() + timeout
        self._next_note = time.monotonic() + _NOTE_SECONDS

    @property
    def overdue(self) -> float:
        """The number of seconds since the timeout; negative before it."""
        return time.monotonic() - self._end

    @property
    def is_over(self) -> bool:
        """Whether the timeout has passed."""
        return self.overdue > 0

    def tick(self, waiting: str) -> None:
        """Sleeps for a moment; sends a note about the wait if one is due."""
        time.sleep(_POLL_SECONDS)
        self.log_if_due(waiting)

    def log_if_due(self, waiting: str) -> None:
        """Sends a note about the wait if one is due."""
        if time.monotonic() > self._next_note:
            self._next_note = time.monotonic() + _NOTE_SECONDS
            self.note(waiting)
