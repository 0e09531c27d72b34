"""Background threads that call a function at regular intervals."""

from __future__ import annotations

import threading
from collections.abc import Callable


def call_regularly(
    action: Callable[[], object], seconds: float, ended: threading.Event, name: str
) -> None:
    """Calls a function at regular intervals in a background thread until an event is set.

    The thread is never joined, because a call may block forever, for example on a pipe that no
    process reads. Therefore a call may still run after the event is set, and the function must
    tolerate that the resources it uses are closed.

    Args:
      action: the function; it is first called after one interval.
      seconds: the number of seconds between two calls.
      ended: the event that ends the calls.
      name: the name of the thread.
    """

    def call() -> None:
        while not ended.wait(seconds):
            action()

    threading.Thread(target=call, name=name, daemon=True).start()
