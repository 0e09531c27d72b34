"""What another thread is executing, as Python's fault handler tells it.

Frames of a thread that runs are not for other threads to hold: seen on Python 3.11.7, one that
walked from frame to frame ended the process with SIGSEGV, and one that held the last reference to
a frame freed the tensors in it while Python shut down, which ended the process with SIGABRT. The
fault handler writes down all stacks while Python's lock is held, and refers to no object.
"""

from __future__ import annotations

import faulthandler
import os
import re
import tempfile
from typing import NamedTuple

# Of Python 3.10 to 3.13; later ones add the thread's name.
_THREAD = re.compile(r"(?:Current t|T)hread 0x([0-9a-f]+) ")
_ENTRY = re.compile(r'  File "(.*)", line (\d+) in (.*)')
_ESCAPED = re.compile(r"\\(?:x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")


class Entry(NamedTuple):
    """A call: the file, the line and the function that is executed."""

    filename: str
    line: int
    function: str


def stack_of(thread: int) -> list[Entry]:
    """Returns the calls that a thread is in, the innermost first; none if there is no such thread.

    The fault handler tells at most 100 calls of a thread, and the 100 youngest threads. Nothing
    is told to a process that can open no more files.

    >>> import threading
    >>> stack_of(threading.get_ident())[0].function
    'stack_of'
    >>> stack_of(0)
    []

    Args:
      thread: its identifier, as `threading.get_ident` returns it.
    """
    try:
        lines = _stacks().splitlines()
    except OSError:
        return []
    found, is_its = [], False
    for line in lines:
        if begun := _THREAD.match(line):
            is_its = int(begun[1], 16) == thread
        elif is_its and (entry := _ENTRY.fullmatch(line)):
            found.append(Entry(_unescaped(entry[1]), int(entry[2]), _unescaped(entry[3])))
    return found


def _stacks() -> str:
    # A file in memory needs no directory that can be written to.
    in_memory = hasattr(os, "memfd_create")
    with open(os.memfd_create("stacks"), "w+b") if in_memory else tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read().decode("ascii", "replace")


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[0][2:], 16)), text)
