"""What another thread is executing.

A frame that another thread runs must not be held while that thread goes on. Seen on Python 3.11.7:
a thread that walked from frame to frame ended the process with SIGSEGV; one that was left as the
last to hold a frame freed the tensors in it, within TensorFlow while Python shut down, which ended
the process with SIGABRT. `faulthandler` holds no frames, but reads the list of threads without its
lock: it ends the process where TensorFlow lets a thread of its own begin to run Python.
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
    """A call: the file, the line and the function that is executed."""

    filename: str
    line: int
    function: str


def stack_of(thread: int) -> list[Entry]:
    """Returns the calls that a thread is in, the innermost first; none if there is no such thread.

    >>> import threading
    >>> stack_of(threading.get_ident())[0].function
    'stack_of'
    >>> stack_of(0)
    []

    Args:
      thread: its identifier, as `threading.get_ident` returns it.
    """
    # All of it is one call of deque.extend, in which Python executes no bytecode: so it keeps its
    # lock, and no other thread goes on, from the first frame to the last. It ends with an error,
    # behind the outermost one.
    innermost = islice(map(methodcaller("get", thread), iter(sys._current_frames, None)), 1)  # noqa: SLF001  # a public function
    frames = accumulate(chain(innermost, repeat("f_back")), getattr)
    found: deque[tuple[str, int, str]] = deque()
    # Of what is collected, finalizers would release the lock.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        found.extend(map(_DESCRIPTION, frames))
    except AttributeError:
        pass
    finally:
        if was_enabled:
            gc.enable()
    return [Entry(*each) for each in found]
