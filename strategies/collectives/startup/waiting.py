"""Waiting for other tasks, with a timeout that names the missing ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from absl import logging

_LOG_EVERY_SECONDS = 5.0


def wait_until(
    is_done: Callable[[], bool],
    missing: Callable[[], str],
    message: Callable[[str], str],
    timeout: float,
    *,
    waiter: object = "This worker",
    start: float | None = None,
    poll_seconds: float = 0.1,
) -> None:
    """Waits until a condition holds; logs what is missing every 5 seconds.

    Args:
      is_done: returns whether the condition holds; called repeatedly.
      missing: returns the names of the missing tasks; empty if all have arrived meanwhile.
      message: returns the error's message, given the names of the missing tasks.
      timeout: the number of seconds to wait.
      waiter: the task that waits, for the log.
      start: when the wait began, by `time.monotonic`; None is now.
      poll_seconds: the longest pause between two checks; the first ones are shorter.

    Raises:
      TimeoutError: if the condition does not hold in time.
    """
    logged = time.monotonic()
    start = logged if start is None else start
    pauses = pauses_up_to(poll_seconds)
    while not is_done():
        now = time.monotonic()
        is_over = now - start >= timeout
        if is_over or now - logged >= _LOG_EVERY_SECONDS:
            logged = now
            names = missing()
            if names and is_over:
                raise TimeoutError(message(names))
            if names:
                logging.warning(
                    "%s waits for %s: %.0f s of %g s.", waiter, names, now - start, timeout
                )
        time.sleep(next(pauses))


def pauses_up_to(seconds: float) -> Iterator[float]:
    """Yields the seconds between two checks: increasing, because most waits are short.

    >>> pauses = pauses_up_to(0.1)
    >>> [round(next(pauses), 3) for _ in range(7)]
    [0.01, 0.015, 0.022, 0.034, 0.051, 0.076, 0.1]
    """
    pause = seconds / 10
    while True:
        yield pause
        pause = min(1.5 * pause, seconds)
