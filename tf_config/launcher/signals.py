"""Signal handlers for a block of code, and signals deferred until the block can end cleanly."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator, Mapping
from types import FrameType

Handler = Callable[[int, FrameType | None], object]

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """Raised when this process has received a signal to end.

    Attributes:
      number: the number of the signal.
    """

    def __init__(self, number: int):
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.number = number


@contextlib.contextmanager
def handle_signals(handlers: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    """Handles signals while the block runs; then restores the previous handlers."""
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def deferred_signals() -> Iterator[Callable[[], None]]:
    """Defers SIGINT, SIGTERM and SIGHUP while the block runs, except signals that are ignored.

    Yields:
      A function that raises `Interrupted` if a signal has arrived.
    """
    received: list[int] = []

    def check() -> None:
        if received:
            raise Interrupted(received[0])

    # Ignored signals stay ignored: under nohup, or in a shell's background job.
    numbers = [number for number in _NUMBERS if signal.getsignal(number) != signal.SIG_IGN]
    with handle_signals(dict.fromkeys(numbers, lambda number, _: received.append(number))):
        yield check
