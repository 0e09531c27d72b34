"""Rows that are asked for before the step that needs them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class _Asked:
    """What was asked for, and the answer when it has come.

    Attributes:
      keys: number of the table, id and count, int64 [n, 3].
      begins: whether a step begins with it.
      answer: to it.
    """

    keys: np.ndarray
    begins: bool
    answer: Future[list[np.ndarray]]

    def is_for(self, keys: np.ndarray, begins: bool) -> bool:
        """Whether it is what a step needs."""
        return self.begins == begins and np.array_equal(self.keys, keys)


class PrefetchQueue:
    """What was asked for beforehand for the batches of one dataset, and is not yet used.

    Args:
      most: how many batches there may be between one that is asked for and the one trained on,
        with this one.
    """

    def __init__(self, most: int):
        # Twice as many: what a dataset that was left before its end asked for is among them.
        self._room = 2 * most
        self._asked: deque[_Asked] = deque()
        self._is_used = False
        self._lock = threading.Lock()

    def ask(self, keys: np.ndarray, begins: bool, ask: Callable[[], list[np.ndarray]]) -> None:
        """Asks, and does not wait for the answer; what is asked for already is not asked again."""
        asked = _Asked(keys, begins, Future())
        with self._lock:
            if any(each.is_for(keys, begins) for each in self._asked):
                return
            self._asked.append(asked)
            if len(self._asked) > self._room:
                self._asked.popleft()
        # Not a daemon: Python ends badly where one is inside of TensorFlow.
        threading.Thread(target=_answer, args=(asked.answer, ask)).start()

    def take(self, keys: np.ndarray, begins: bool) -> list[np.ndarray] | None:
        """Returns the answer for keys, which is used up by that; None if nobody asked."""
        with self._lock:
            for asked in self._asked:
                if asked.is_for(keys, begins):
                    self._asked.remove(asked)
                    self._is_used = True
                    break
            else:
                return None
        return asked.answer.result()

    def check(self) -> None:
        """Checks that steps need what is asked for.

        Raises:
          ValueError: if other keys were asked for all the time.
        """
        if self._is_used or len(self._asked) < self._room:
            return
        raise ValueError(
            "What prefetch_rows asks for is what the layer is called with: `ids` does to a batch "
            f"what the model does before the layer. Received: the ids of {self._room} batches, "
            "and a step with others. Correct `ids`, or pass what prefetch_rows returns to fit as "
            "it is, without a map or batch behind it."
        )

    def forget(self) -> None:
        """Sees to it that no answer to what was asked until now is used."""
        with self._lock:
            self._asked.clear()


def _answer(answer: Future, ask: Callable[[], list[np.ndarray]]) -> None:
    try:
        answer.set_result(ask())
    except BaseException as error:  # noqa: B036  raised again in the step that needs it
        answer.set_exception(error)
