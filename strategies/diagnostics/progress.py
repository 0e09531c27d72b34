"""Reports this process's step to the launcher, which shows it if the process is killed."""

from __future__ import annotations

import atexit
import functools
import os
import threading

from strategies.diagnostics.calls import call_in
from strategies.diagnostics.stack import stack_of
from strategies.diagnostics.watchdog import place_in
from strategies.utils.background_thread import BackgroundThread
from tf_config.launcher.exit_diagnosis import write_progress
from tf_config.launcher.settings import PROGRESS_VARIABLE

_PAUSE_SECONDS = 0.5
_SECONDS_TO_END = 5.0  # a network directory that does not respond may delay the thread
_has_started = False


def start_progress_reports() -> None:
    """Starts reporting the main thread's position if the launcher reads it; once per process."""
    global _has_started
    path = os.environ.get(PROGRESS_VARIABLE, "")
    if path and not _has_started:
        _has_started = True
        thread = BackgroundThread(functools.partial(_tell, path), "progress")
        thread.start()
        # The thread may hold the last reference to a model and free it within TensorFlow. See
        # [Note: the end of the interpreter] in utils/background_thread.py.
        atexit.register(thread.stop, _SECONDS_TO_END)


def where(thread: int) -> str:
    """Returns the optimizer's number of steps and the thread's position in the user's program."""
    stack = stack_of(thread)
    _, model = call_in(stack)
    place = place_in(stack)
    iterations = getattr(getattr(model, "optimizer", None), "iterations", None)
    words = [] if iterations is None else [f"after step {int(iterations.numpy())}"]
    return ", ".join([*words, *([f"in {place}"] if place else [])])


def _tell(path: str, stopped: threading.Event) -> None:
    main = threading.main_thread().ident or 0
    while not stopped.wait(_PAUSE_SECONDS):
        try:
            write_progress(path, where(main))
        except OSError:
            return
        except Exception:  # a model under construction may have no optimizer or iterations yet
            continue
