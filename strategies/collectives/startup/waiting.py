"""Waiting for other tasks, with a timeout that names those missing."""

from __future__ import annotations

import time
from collections.abc import Callable

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
      is_done: the condition, asked again and again.
      missing: names those that are waited for; an empty text if they have all come meanwhile.
      message: of the error, made of the names of those that are missing.
      timeout: seconds until it gives up.
      waiter: the task that waits, for the log.
      start: when the wait began, of `time.monotonic`; None is now.
      poll_seconds: the pause between two questions.

    Raises:
      TimeoutError: if the condition does not hold in time.
    """
    logged = time.monotonic()
    start = logged if start is None else start
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
        time.sleep(poll_seconds)
