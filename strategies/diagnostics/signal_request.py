"""A request by a signal, for a thread that looks for it, whatever the main thread is doing."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path
from types import FrameType

_STATUS = Path("/proc/self/status")


class SignalRequest:
    """Notes that a signal has arrived, unless the program itself uses the signal.

    Python runs its handlers in the main thread only. A worker that hangs is in an operation there,
    which Python cannot interrupt. So the signal is read from a pipe, into which Python writes its
    number as it arrives.

    Args:
      number: the number of the signal.
    """

    def __init__(self, number: int):
        self._number = number
        self._pipe: tuple[int, int] | None = None
        self._is_woken_up = False

    def start(self) -> None:
        """Handles the signal; does nothing if the program does, or in another than the main thread.

        A handler that the program installs later takes the place of this one.
        """
        is_main = threading.current_thread() is threading.main_thread()
        if self._pipe is not None or not is_main or not _has_default_action(self._number):
            return
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        former = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        self._is_woken_up = former == -1
        if not self._is_woken_up:  # the program uses it, as asyncio does
            signal.set_wakeup_fd(former)
        signal.signal(self._number, self._handle)
        signal.siginterrupt(self._number, False)  # system calls of libraries continue
        os.register_at_fork(after_in_child=self.stop)  # a child does not look for it

    def stop(self) -> None:
        """Restores the signal's default action, unless the program has changed it since."""
        if self._pipe is None:
            return
        with contextlib.suppress(ValueError):  # not in the main thread
            if self._is_current():
                signal.signal(self._number, signal.SIG_DFL)
            if self._is_woken_up:
                former = signal.set_wakeup_fd(-1)
                if former not in (-1, self._pipe[1]):
                    signal.set_wakeup_fd(former)

    def is_pending(self) -> bool:
        """Returns whether the signal has arrived since the last call; callable in any thread."""
        if self._pipe is None:
            return False
        try:
            numbers = os.read(self._pipe[0], 1 << 10)
        except BlockingIOError:
            return False
        # The numbers of all signals that Python handles arrive here, also for other handlers.
        return self._number in numbers and self._is_current()

    def _is_current(self) -> bool:
        return signal.getsignal(self._number) == self._handle

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._pipe is None:
            return
        current = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(current, warn_on_full_buffer=False)
        if current != self._pipe[1]:  # otherwise, Python has written the number already
            with contextlib.suppress(BlockingIOError):
                os.write(self._pipe[1], bytes([number]))


def _has_default_action(number: int) -> bool:
    """Returns whether neither Python nor a library handles a signal."""
    if signal.getsignal(number) != signal.SIG_DFL:
        return False
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith("SigCgt:"):  # also set by handlers in C, as faulthandler's
                return not int(line.split()[1], 16) >> (number - 1) & 1
    return True
