"""Background threads that end before the interpreter does.

[Note: the end of the interpreter]
Once Python shuts down, a daemon thread is ended when it next needs Python's global lock. If it is
returning from TensorFlow at that point, C++ code is on its stack, and the whole process is aborted:
a program that has succeeded ends with SIGABRT. So a thread that may be in TensorFlow must be
stopped by an `atexit` handler, which runs while threads may still use Python. Handlers registered
later run earlier, and so before those of TensorFlow and Horovod, which end the operations that
threads wait in.

How a thread is stopped depends on what it waits for:
* a pause: `BackgroundThread.stop`, here.
* a server: `close` in `ps/connection.py` closes the sessions and waits for the threads in them.
* requests: `collectives/shared_memory/stream.py` closes the queue that they come from.
* the deletion of an iterator: `data/iterator_deletion.py`, which must not take a Python lock.
* a lookup: `embedding/lookup/prefetch_queue.py` uses a thread that is not a daemon; Python itself
  waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


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
