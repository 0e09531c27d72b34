"""How long a meeting has been waiting, and when that is worth a word."""

from __future__ import annotations

import time
from collections.abc import Callable

_NOTE_SECONDS = 5.0
_POLL_SECONDS = 0.05


class Clock:
    """Time left, and a note every 5 seconds.

    Args:
      timeout: seconds in all.
      note: takes the notes.
    """

    def __init__(self, timeout: float, note: Callable[[str], None]):
        self.timeout = timeout
        self.note = note
        self._end = time.monotonic() + timeout
        self._next_note = time.monotonic() + _NOTE_SECONDS

    @property
    def overdue(self) -> float:
        """For how many seconds no time has been left; negative before."""
        return time.monotonic() - self._end

    @property
    def is_over(self) -> bool:
        """Whether no time is left."""
        return self.overdue > 0

    def tick(self, waiting: str) -> None:
        """Lets a moment pass; says what is waited for if it is time to."""
        time.sleep(_POLL_SECONDS)
        self.remark(waiting)

    def remark(self, waiting: str) -> None:
        """Says what is waited for if it is time to."""
        if time.monotonic() > self._next_note:
            self._next_note = time.monotonic() + _NOTE_SECONDS
            self.note(waiting)
