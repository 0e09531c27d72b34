"""A worker's wait for a parameter server that is restarted in place.

[Note: a server that is restarted in place]
If a server is lost, the launcher starts it again at the same address, and it restores the state
that it last saved; see [Note: a save of a server] in state_saver.py. Workers wait and continue.

* `ServerRestarts.wait` returns once the new process serves. Each connection then opens a new
  session, which sends its whole graph, and makes its call again.
* What the lost process did after its last save is lost. What it did for a call that is repeated is
  lost as well, or it is in the save. A push is made exactly once in either case, because its
  sequence number was saved together with its changes. Other calls read, or have the same effect if
  they are made twice. Only a call at a barrier cannot be repeated, because another worker may have
  got the results of the barrier already. Such a call fails as without restarts.
* What a worker has from the lost process may no longer fit: positions in row logs (row_log.py),
  references to rows (variables/row_view.py), prefetched rows and the bases of deltas
  (embedding/tables.py). Positions and references become invalid by numbers that the server adds to
  what it restores, and objects of the worker are notified (`add_listener`).
* If the process was lost before the first save with a variable, the variable has no value. Calls
  that use it fail, and the whole job has to be restarted.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from absl import logging

from strategies.ps.membership import PRESENT, Incarnation, Membership
from tf_config import Address
from tf_config.reachability import connect

_ANSWER_SECONDS = 5.0
_POLL_SECONDS = 0.5
_LOG_EVERY_SECONDS = 10.0
# After this time, a process that answers as before was never lost.
_SAME_SECONDS = 10.0


class ServerRestarts:
    """Waits for a server to be restarted, for all connections of this worker to it.

    Args:
      number: the index of the server's task.
      address: the address that the server listens on.
      membership: the connection to the server's states of workers.
      rank: this worker's rank.
      timeout: the number of seconds to wait for a restart.
      state: returns this worker's state.

    Attributes:
      lock: held while this worker waits for the server and prepares to continue.
      count: the number of restarts so far that this worker has noticed.
    """

    def __init__(
        self,
        number: int,
        address: Address,
        membership: Membership,
        rank: int,
        timeout: float,
        state: Callable[[], int] = lambda: PRESENT,
    ):
        self._state = state
        self._name = f"ps {number} ({address})"
        self._address = address
        self._membership = membership
        self._rank = rank
        self._timeout = timeout
        self._incarnation = membership.incarnation()
        self._is_given_up = threading.Event()
        self._listeners: list[tuple[weakref.ref[Any], Callable[[Any, float], None]]] = []
        # The listeners make calls to the server themselves, and so may find it lost again.
        self.lock = threading.RLock()
        self.count = 0

    def add_listener(self, owner: Any, notify: Callable[[Any, float], None]) -> None:
        """Registers a function to call after a restart, before any call is made to the new process.

        Args:
          owner: the first argument of the function, which is not kept alive.
          notify: the function; its second argument is how many seconds before its loss the server
            saved the state that it has restored.
        """
        self._listeners.append((weakref.ref(owner), notify))

    def give_up(self) -> None:
        """Ends the wait: this worker will fail, because of a call that cannot be repeated."""
        self._is_given_up.set()

    def wait(self, count: int, reason: str) -> bool:
        """Waits until the server has been restarted and notifies the listeners.

        Args:
          count: the number of restarts before the call that found the server lost. If there are
            more now, another thread has waited.
          reason: why the server is believed to be lost.

        Returns:
          Whether it was restarted; otherwise, it is lost for good.
        """
        with self.lock:
            if self.count != count:
                return True
            lost = time.monotonic()
            logging.warning(
                "%s is lost: %s. Waiting until it is restarted, %.0f s at most.",
                self._name, reason, self._timeout,
            )  # fmt: skip
            if not self._wait_for_next(lost):
                return False
            self.count += 1
            age = max(self._incarnation.age - (time.monotonic() - lost), 0.0)
            logging.warning(
                "%s was restarted with its state of %.0f s before it was lost; training continues.",
                self._name, age,
            )  # fmt: skip
            for reference, notify in list(self._listeners):
                if (owner := reference()) is not None:
                    notify(owner, age)
            return True

    def _wait_for_next(self, lost: float) -> bool:
        """Returns whether another process of the server serves before the timeout."""
        logged = lost
        while (now := time.monotonic()) - lost < self._timeout:
            if now - logged >= _LOG_EVERY_SECONDS:
                logged = now
                logging.warning("Waiting for %s to be restarted: %.0f s.", self._name, now - lost)
            answer = self._answer() if self._is_listening() else None
            if answer is not None and answer != self._incarnation:
                self._incarnation = answer
                return True
            if answer is not None and now - lost >= _SAME_SECONDS:
                return False
            if self._is_given_up.wait(_POLL_SECONDS):
                return False
        return False

    def _is_listening(self) -> bool:
        return connect([self._address], _ANSWER_SECONDS)[self._address].state == "taken"

    def _answer(self) -> Incarnation | None:
        """Returns which process of the server serves; None if none does yet.

        If it is another one than before, also tells it that this worker is present.
        """
        answers: queue.SimpleQueue[Incarnation | None] = queue.SimpleQueue()
        membership = self._membership

        def ask() -> None:
            # An error means that the session was one with the lost process.
            with contextlib.suppress(tf.errors.OpError):
                answer = membership.incarnation() if membership.is_initialized() else None
                if answer is not None and answer != self._incarnation:
                    membership.set_state(self._rank, self._state())
                answers.put(answer)

        # In a daemon thread: TensorFlow waits forever for a server that is gone.
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(_ANSWER_SECONDS)
        try:
            return answers.get_nowait()
        except queue.Empty:
            membership.reconnect()
            return None
