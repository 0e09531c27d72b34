"""Waiting for other processes, with a timeout, pauses between checks, and progress messages."""

from __future__ import annotations

import time
from collections.abc import Callable

_NOTE_SECONDS = 5.0


class Deadline:
    """A timeout, with growing pauses between checks and a message every 5 seconds.

    Args:
      timeout: the number of seconds in total.
      note: called with each message; None for no messages.
      poll_seconds: the longest pause between two checks, in seconds.
      start: the start of the wait, in terms of `time.monotonic`; None for now.
    """

    def __init__(
        self,
        timeout: float,
        note: Callable[[str], None] | None = None,
        poll_seconds: float = 0.05,
        start: float | None = None,
    ):
        self.timeout = timeout
        self.note = note or (lambda text: None)
        self._longest_pause = poll_seconds
        self._pause = poll_seconds / 10  # shorter at first, because most waits are short
        self._start = time.monotonic() if start is None else start
        self._next_note = time.monotonic() + _NOTE_SECONDS

    @property
    def elapsed(self) -> float:
        """The number of seconds since the start."""
        return time.monotonic() - self._start

    @property
    def overdue(self) -> float:
        """The number of seconds since the timeout; negative before it."""
        return self.elapsed - self.timeout

    @property
    def is_over(self) -> bool:
        """Whether the timeout has expired."""
        return self.overdue >= 0

    def wait_until(
        self,
        is_done: Callable[[], bool],
        missing: Callable[[], str],
        error: Callable[[str], Exception],
    ) -> None:
        """Waits until a condition holds.

        Args:
          is_done: returns whether the condition holds; called repeatedly.
          missing: returns what is missing, for the messages and the error. If it returns "", the
            condition is checked once more, even after the timeout. It is called only when a
            message or the error is due, because it may query other hosts.
          error: returns the error to raise after the timeout, given what is missing.
        """
        while not is_done():
            waiting = missing() if self.is_over or self._is_note_due else ""
            if waiting and self.is_over:
                raise error(waiting)
            self.tick(waiting)

    def poll(self, is_done: Callable[[], bool], waiting: str = "") -> None:
        """Waits until a condition holds or the timeout expires."""
        while not (is_done() or self.is_over):
            self.tick(waiting)

    def tick(self, waiting: str) -> None:
        """Pauses before the next check; first reports what it waits for if a message is due."""
        self.log_if_due(waiting)
        time.sleep(self._pause)
        self._pause = min(1.5 * self._pause, self._longest_pause)

    def log_if_due(self, waiting: str) -> None:
        """Reports what is waited for if a message is due, unless the text is empty."""
        if self._is_note_due:
            self._next_note = time.monotonic() + _NOTE_SECONDS
            if waiting:
                self.note(waiting)

    @property
    def _is_note_due(self) -> bool:
        return time.monotonic() >= self._next_note
