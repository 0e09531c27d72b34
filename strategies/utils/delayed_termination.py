"""A delay of SIGTERM, by which schedulers and launchers end a job."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

_RELEASED = 0  # no signal has this number


class DelayedTermination:
    """Delays SIGTERM until `release` is called, but not for longer than some seconds.

    It has no effect in other threads than the main one, and if the program handles SIGTERM itself.

    >>> termination = DelayedTermination(20)
    >>> termination.is_requested
    False
    >>> termination.release()

    Args:
      seconds: how long the process lives at most after the signal has arrived.

    Attributes:
      is_requested: whether the signal has arrived.
    """

    def __init__(self, seconds: float):
        self.is_requested = False
        self._seconds = seconds
        in_main_thread = threading.current_thread() is threading.main_thread()
        self._is_handled = in_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        if self._is_handled:
            # The main thread may be in TensorFlow, waiting for a worker that has ended. Then Python
            # does not call the handler, but it writes the number of the signal to this pipe.
            self._source, self._sink = os.pipe()
            os.set_blocking(self._sink, False)
            self._former = signal.set_wakeup_fd(self._sink, warn_on_full_buffer=False)
            signal.signal(signal.SIGTERM, self._request)
            self._released = threading.Event()
            self._limit = threading.Thread(target=self._end_in_time, name="SIGTERM", daemon=True)
            self._limit.start()

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.is_requested = True

    def _end_in_time(self) -> None:
        """Ends the process if it is not released in time after the signal."""
        while (number := os.read(self._source, 1)[0]) != _RELEASED:
            if number == signal.SIGTERM and not self._released.wait(self._seconds):
                os._exit(128 + number)

    def release(self) -> None:
        """Ends the process if the signal has arrived; no longer delays it otherwise."""
        if not self._is_handled:
            return
        self._is_handled = False
        signal.set_wakeup_fd(self._former)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._released.set()
        os.write(self._sink, bytes([_RELEASED]))
        self._limit.join()
        os.close(self._source)
        os.close(self._sink)
        if self.is_requested:
            os.kill(os.getpid(), signal.SIGTERM)
