"""The calls that another thread is executing.

A frame of another thread must not be held while that thread runs. Observed on Python 3.11.7: a
thread that walked from frame to frame crashed the process with SIGSEGV; a thread that held the last
reference to a frame freed that frame's tensors within TensorFlow while Python shut down, which
crashed the process with SIGABRT. `faulthandler` holds no frames, but reads the list of threads
without its lock: it crashes the process if a TensorFlow thread starts to run Python at that moment.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from itertools import accumulate, chain, islice, repeat
from operator import attrgetter, methodcaller
from typing import NamedTuple

_DESCRIPTION = attrgetter("f_code.co_filename", "f_lineno", "f_code.co_name")


class Entry(NamedTuple):
    """A call: the file, line and function that are being executed."""

    filename: str
    line: int
    function: str


def stack_of(thread: int) -> list[Entry]:
    """Returns the calls that a thread is in, innermost first; none if the thread does not exist.

    >>> import threading
    >>> stack_of(threading.get_ident())[0].function
    'stack_of'
    >>> stack_of(0)
    []

    Args:
      thread: the thread's identifier, as `threading.get_ident` returns it.
    """
    # A single call of deque.extend walks all frames without executing bytecode, so Python keeps its
    # lock and no other thread runs until it returns. It raises AttributeError after the last frame.
    innermost = islice(map(methodcaller("get", thread), iter(sys._current_frames, None)), 1)  # noqa: SLF001  # a public function
    frames = accumulate(chain(innermost, repeat("f_back")), getattr)
    calls: deque[tuple[str, int, str]] = deque()
    # Finalizers of collected objects would release the lock.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        calls.extend(map(_DESCRIPTION, frames))
    except AttributeError:
        pass
    finally:
        if was_enabled:
            gc.enable()
    return [Entry(*each) for each in calls]
