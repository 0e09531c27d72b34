"""A delay of SIGTERM, by which schedulers and launchers end a job."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType


class DelayedTermination:
    """Delays SIGTERM until `release` is called, but not for longer than some seconds.

    It has no effect in other threads than the main one, and if the program handles SIGTERM itself.

    >>> termination = DelayedTermination(20)
    >>> termination.is_requested
    False
    >>> termination.release()

    Args:
      seconds: how long the process lives at most after the signal has arrived.
    """

    def __init__(self, seconds: float):
        self._seconds = seconds
        self.is_requested = False
        in_main_thread = threading.current_thread() is threading.main_thread()
        self._is_handled = in_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        if self._is_handled:
            signal.signal(signal.SIGTERM, self._delay)

    def _delay(self, number: int, frame: FrameType | None) -> None:
        self.is_requested = True
        # The main thread may wait for a worker that has ended, and would never return.
        limit = threading.Timer(self._seconds, os._exit, [128 + number])
        limit.daemon = True
        limit.start()

    def release(self) -> None:
        """Ends the process if the signal has arrived; no longer delays it otherwise."""
        if self._is_handled:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._is_handled = False
            if self.is_requested:
                os.kill(os.getpid(), signal.SIGTERM)
