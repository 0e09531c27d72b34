"""Queue of lookups that are submitted before the steps that need them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from strategies.diagnostics.metrics import add_source
from tf_config.launcher.progress_file import Sample


@dataclass(frozen=True, eq=False)
class _Request:
    """A submitted lookup.

    Attributes:
      keys: number of the table, id and number of its occurrences, int64 [n, 3].
      starts_step: whether this is the first lookup of a step.
      result: future of the result.
    """

    keys: np.ndarray
    starts_step: bool
    result: Future[list[np.ndarray]]

    def matches(self, keys: np.ndarray, starts_step: bool) -> bool:
        """Returns whether this is the lookup that a step needs."""
        return self.starts_step == starts_step and np.array_equal(self.keys, keys)


class PrefetchQueue:
    """Queue of submitted, unused lookups for the batches of one dataset.

    Args:
      distance: number of batches from the one being trained on to the one submitted, inclusive.
    """

    def __init__(self, distance: int):
        # Twice the distance leaves room for lookups of an iteration that was abandoned.
        self._capacity = 2 * distance
        self._requests: deque[_Request] = deque()
        self._is_used = False
        self._lock = threading.Lock()
        add_source(self, PrefetchQueue.samples)

    def samples(self) -> Iterable[Sample]:
        """Returns the number of unused lookups, for the page of metrics."""
        return (Sample("queue_depth", len(self._requests), ("lookups",)),)

    def submit(
        self, keys: np.ndarray, starts_step: bool, look_up: Callable[[], list[np.ndarray]]
    ) -> None:
        """Starts a lookup in a thread, unless the same lookup is already in the queue."""
        request = _Request(keys, starts_step, Future())
        with self._lock:
            if any(each.matches(keys, starts_step) for each in self._requests):
                return
            self._requests.append(request)
            if len(self._requests) > self._capacity:
                self._requests.popleft()
        # Not a daemon thread; see [Note: the end of the interpreter] in utils/background_thread.py.
        threading.Thread(target=_run, args=(request.result, look_up)).start()

    def pop(self, keys: np.ndarray, starts_step: bool) -> list[np.ndarray] | None:
        """Removes a lookup and waits for its result; returns None if it was not submitted."""
        with self._lock:
            for request in self._requests:
                if request.matches(keys, starts_step):
                    self._requests.remove(request)
                    self._is_used = True
                    break
            else:
                return None
        return request.result.result()

    def check(self) -> None:
        """Raises ValueError if the queue is full and no step has ever used one of its lookups."""
        if self._is_used or len(self._requests) < self._capacity:
            return
        raise ValueError(
            "The function `ids` of prefetch_rows must return the ids that the layer is called "
            f"with. Received: the ids of {self._capacity} batches, and a step with other ids. "
            "Correct `ids`, or pass the dataset that prefetch_rows returns to fit unchanged, "
            "without calling map or batch on it."
        )

    def clear(self) -> None:
        """Removes all lookups and discards their results."""
        with self._lock:
            self._requests.clear()


def _run(result: Future[Any], look_up: Callable[[], list[np.ndarray]]) -> None:
    try:
        result.set_result(look_up())
    except BaseException as error:  # noqa: B036  raised again in the step that needs it
        result.set_exception(error)
