"""Calls to a server that end with it.

TensorFlow waits for ever for an answer of a server that was killed, for it may be there again. A
deadline is no way out: a server that is slow or paused has to lose nothing. What tells the two
apart is the server's address: while its process is alive, a connection is accepted.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from tf_config import Address
from tf_config.connect import connect

_LOOK_EVERY_SECONDS = 1.0
_ANSWER_SECONDS = 2.0
_SILENT_SECONDS = 30.0  # a host that is gone does not even refuse
_T = TypeVar("_T")


class ServerLost(RuntimeError):
    """A parameter server does not answer any more."""


class Calls:
    """Makes calls to one server, of any number of threads at once.

    Args:
      number: of the ps task.
      address: where it listens.
    """

    def __init__(self, number: int, address: Address):
        self._name = f"ps {number} ({address})"
        self._address = address
        self._why: str | None = None
        self._idle: queue.LifoQueue[queue.SimpleQueue[Any]] = queue.LifoQueue()

    def __call__(self, action: Callable[[], _T]) -> _T:
        """Returns what a function that asks the server gives.

        Raises:
          ServerLost: if the server is gone, before the call or while it lasts.
        """
        if self._why is not None:
            raise self.lost(self._why)
        future = self._begin(action)
        reached = time.monotonic()
        while not wait([future], _LOOK_EVERY_SECONDS).done:
            state, reason = connect([self._address], _ANSWER_SECONDS)[self._address]
            now = time.monotonic()
            if state == "taken":
                reached = now
            elif state == "closed" or now - reached > _SILENT_SECONDS:
                raise self.lost("nobody listens there" if state == "closed" else reason)
        return future.result()

    @property
    def is_lost(self) -> bool:
        """Whether the server has been found gone."""
        return self._why is not None

    def lost(self, why: str) -> ServerLost:
        """Returns the error that says so; every later call ends in it too."""
        self._why = why
        return ServerLost(
            f"Parameter servers serve as long as anybody trains. Received: {self._name} is gone: "
            f"{why}. See its own output for why it ended."
        )

    def _begin(self, action: Callable[[], _T]) -> Future[_T]:
        """Starts a call in a thread that may be left behind."""
        future: Future[_T] = Future()
        try:
            tasks = self._idle.get_nowait()
        except queue.Empty:
            tasks = queue.SimpleQueue()
            # Not one of a pool of Python's: it would wait for the call when it ends.
            threading.Thread(target=self._serve, args=(tasks,), daemon=True).start()
        tasks.put((future, action))
        return future

    def _serve(self, tasks: queue.SimpleQueue[Any]) -> None:
        while True:
            future, action = tasks.get()
            try:
                result = action()
            except BaseException as error:  # noqa: B036  raised where it is waited for
                future.set_exception(error)
            else:
                future.set_result(result)
            del future, action
            self._idle.put(tasks)
