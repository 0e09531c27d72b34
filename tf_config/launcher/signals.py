"""Signals that ask a process to end, deferred until it can end and leave nothing half done."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """Raised when a signal asked this process to end.

    Attributes:
      number: the number of the signal.
    """

    def __init__(self, number: int):
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.number = number


@contextlib.contextmanager
def deferred_signals() -> Iterator[Callable[[], None]]:
    """Defers SIGINT, SIGTERM and SIGHUP while the block runs, except signals that are ignored.

    Yields:
      A function that raises `Interrupted` if a signal has arrived.
    """
    received: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: received.append(number))
        for number in _NUMBERS
        if signal.getsignal(number) != signal.SIG_IGN  # nohup, or a shell's background job
    }

    def check() -> None:
        if received:
            raise Interrupted(received[0])

    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
