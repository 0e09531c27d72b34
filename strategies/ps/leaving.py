"""A worker of an elastic job that is asked by SIGTERM to leave."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from absl import logging

from strategies.compat.call_stack import frames
from tf_config.launcher.reports import LEAVES, report

_RETRY_SECONDS = 0.05
# TensorFlow calls Python functions that are parts of a graph from this module.
_IN_GRAPH = "script_ops.py"


class LeaveRequest:
    """Ends this program by SIGTERM in order: between two steps, with exit code 0.

    The signal ends the program by `SystemExit`, so that `finally` blocks run, and the functions
    that Python runs at exit tell the servers. It has no effect on a program that handles SIGTERM
    itself, or that creates its strategy outside of the main thread.

    Args:
      may_leave: returns whether no exchange with other workers is under way.
      leave: called at the exit of a program that was asked to leave.
    """

    def __init__(self, may_leave: Callable[[], bool], leave: Callable[[], None]):
        self._may_leave = may_leave
        self._leave = leave
        self._is_requested = False
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._request)

    def _request(self, number: int, frame: FrameType | None) -> None:
        del frame
        # Python calls this between two of its own instructions, so a step in a tf.function has
        # ended; but not if the step calls a Python function in this thread.
        if not self._is_requested:
            self._is_requested = True
            atexit.register(self._leave)  # the last one that is registered runs first
            report(LEAVES)
            logging.warning("This worker leaves the job after its step, because it was asked to.")
        if not _is_in_graph() and self._may_leave():
            signal.signal(number, signal.SIG_IGN)
            sys.exit(0)
        threading.Thread(target=_ask_again, name="leave", daemon=True).start()


def _ask_again() -> None:
    time.sleep(_RETRY_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


def _is_in_graph() -> bool:
    return any(os.path.basename(frame.f_code.co_filename) == _IN_GRAPH for frame in frames())
