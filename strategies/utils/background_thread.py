"""Threads in the background, and their end before that of the interpreter.

[Note: the end of the interpreter]
Once Python shuts down, a daemon thread ends where it next needs Python's global lock. If it comes
back from TensorFlow there, C++ code is on its stack, and the whole process is aborted: a program
that has succeeded returns SIGABRT. So a thread that may be in TensorFlow is ended in a function of
`atexit`, which runs while threads may still use Python. Functions registered later run earlier,
and so before those of TensorFlow and Horovod, which end the operations that threads wait in.

How a thread is ended depends on what it waits for:
* for time to pass, or for a disk: `BackgroundThread.stop`, here.
* for a server: `close` in `ps/connection.py` closes the sessions and waits for the threads in them.
* for requests: `collectives/shared_memory/stream.py` closes the queue that they come from.
* for the deletion of an iterator: `data/iterator_deletion.py`, which may take no lock of Python's.
* for one lookup: `embedding/lookup/prefetch_queue.py`, in a thread that is no daemon; Python waits
  for those itself.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable


class BackgroundThread:
    """A daemon thread that works in rounds, until it is stopped.

    >>> thread = BackgroundThread(lambda stopped: stopped.wait(), "example")
    >>> thread.start()
    >>> thread.stop()

    Args:
      target: takes an event that is set when the thread is to end; it waits for this event between
        two rounds.
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
        """Ends the thread and waits for its end; see [Note: the end of the interpreter].

        Args:
          seconds: how long to wait at most; None waits for as long as it takes.
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
    """

    def __init__(self, function: Callable[[Callable[[], None]], object], name: str):
        self._function = function
        self._error: Exception | None = None
        self._done = threading.Event()
        self._thread = BackgroundThread(self._run, name)
        self._thread.start()
        atexit.register(self.stop)

    def _run(self, stopped: threading.Event) -> None:
        def check() -> None:
            if stopped.is_set():
                raise StoppedError

        try:
            self._function(check)
        except Exception as error:  # raised by the thread that asks for it
            self._error = error
        finally:
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
        atexit.unregister(self.stop)
