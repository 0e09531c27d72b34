"""Background threads that end before the interpreter does.

[Note: the end of the interpreter]
Once Python shuts down, a daemon thread is ended when it next needs Python's global lock. If it is
returning from TensorFlow at that point, C++ code is on its stack, and the whole process is aborted:
a program that has succeeded ends with SIGABRT. So a thread that may be in TensorFlow must be
stopped by an `atexit` handler, which runs while threads may still use Python. Handlers registered
later run earlier, and so before those of TensorFlow and Horovod, which end the operations that
threads wait in.

How a thread is stopped depends on what it waits for:
* a pause, or a disk: `BackgroundThread.stop`, here.
* a server: `close` in `ps/connection.py` closes the sessions and waits for the threads in them.
* requests: `collectives/shared_memory/stream.py` closes the queue that they come from.
* the deletion of an iterator: `data/iterator_deletion.py`, which must not take a Python lock.
* a lookup: `embedding/lookup/prefetch_queue.py` uses a thread that is not a daemon; Python itself
  waits for it.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable


def is_ending_by_error() -> bool:
    """Returns whether an error ends this program; only for functions that Python runs at its exit.

    Python keeps the error that has ended a script. What others wait for must not wait then.
    """
    return hasattr(sys, "last_value")


class BackgroundThread:
    """A daemon thread that works in rounds until it is stopped.

    >>> thread = BackgroundThread(lambda stopped: stopped.wait(), "example")
    >>> thread.start()
    >>> thread.stop()

    Args:
      target: takes an event that is set when the thread must end, and waits for it between rounds.
      name: the thread's name.
    """

    def __init__(self, target: Callable[[threading.Event], object], name: str):
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=target, args=(self._stopped,), name=name, daemon=True
        )

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self, seconds: float | None = None) -> None:
        """Stops the thread and waits until it has ended; see [Note: the end of the interpreter].

        Args:
          seconds: the longest time to wait; None is no limit.
        """
        self._stopped.set()
        self._thread.join(seconds)


class StoppedError(Exception):
    """Raised by the function of a `BackgroundTask` that was stopped."""


class BackgroundTask:
    """A function that runs once in a daemon thread, which ends before the interpreter does.

    >>> task = BackgroundTask(lambda check: check(), "example")
    >>> task.wait()
    >>> task.is_done, task.error
    (True, None)

    Args:
      function: takes a function that raises `StoppedError` once the task is to end, and calls it
        every now and then.
      name: the thread's name.
      niceness: how much lower the thread's priority is than that of the thread that creates it, as
        the command `nice` takes it. Without effect if the system is not Linux.
    """

    def __init__(
        self, function: Callable[[Callable[[], None]], object], name: str, niceness: int = 0
    ):
        self._functions = [function]
        self._niceness = niceness
        self._error: Exception | None = None
        self._done = threading.Event()
        self._thread = BackgroundThread(self._run, name)
        atexit.register(self.stop)
        self._thread.start()

    def _run(self, stopped: threading.Event) -> None:
        def check() -> None:
            if stopped.is_set():
                raise StoppedError

        try:
            _lower_priority(self._niceness)
            # Freed with all that it has captured, which may be a copy of a model's variables.
            self._functions.pop()(check)
        except Exception as error:  # raised by the thread that asks for it
            self._error = error
        finally:
            atexit.unregister(self.stop)
            self._done.set()

    @property
    def is_done(self) -> bool:
        """Whether the function has returned or failed."""
        return self._done.is_set()

    @property
    def error(self) -> Exception | None:
        """The error that the function has raised; None if there is none so far."""
        return self._error

    def wait(self) -> None:
        """Waits until the function has returned or failed."""
        self._done.wait()

    def stop(self) -> None:
        """Ends the function where it next checks, and waits for its end."""
        self._thread.stop()


def _lower_priority(niceness: int) -> None:
    """Lowers the priority of the calling thread; only on Linux does each thread have its own."""
    if niceness and sys.platform == "linux":
        thread = threading.get_native_id()
        current = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, current + niceness)
