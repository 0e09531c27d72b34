"""Background threads, and how they end."""

from __future__ import annotations

import threading
from collections.abc import Callable


def call_regularly(
    action: Callable[[], object], seconds: float, ended: threading.Event, name: str
) -> None:
    """Calls a function every few seconds in a thread, until an event is set.

    Nobody waits for the thread: a call that is blocked, as by a pipe that nobody reads, must not
    keep its owner from ending. So one call may still run after the event was set, and the function
    must bear that what it uses is closed.

    Args:
      action: the function; it is first called after one interval.
      seconds: the number of seconds between two calls.
      ended: the event.
      name: the name of the thread.
    """

    def call() -> None:
        while not ended.wait(seconds):
            action()

    threading.Thread(target=call, name=name, daemon=True).start()
