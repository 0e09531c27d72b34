"""Waiting for other tasks, with a timeout that names the missing ones."""

from __future__ import annotations

from collections.abc import Callable

from absl import logging

from tf_config.rendezvous.waiting import Deadline


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
      missing: returns the names of the missing tasks; empty if all have arrived in the meantime.
      message: returns the error's message, given the names of the missing tasks.
      timeout: the number of seconds to wait.
      waiter: the task that waits, for the log.
      start: when the wait began, by `time.monotonic`; None is now.
      poll_seconds: the longest pause between two checks; the first ones are shorter.

    Raises:
      TimeoutError: if the condition does not hold in time.
    """

    def log(names: str) -> None:
        logging.warning(
            "%s waits for %s: %.0f s of %g s.", waiter, names, deadline.elapsed, timeout
        )

    deadline = Deadline(timeout, log, poll_seconds, start)
    deadline.wait_until(is_done, missing, lambda names: TimeoutError(message(names)))
