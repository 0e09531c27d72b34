"""Tells the launcher at which step this process is, which says so of one that is killed."""

from __future__ import annotations

import atexit
import os
import threading

from strategies.collectives.health.calls import call_in
from strategies.collectives.health.stack import stack_of
from strategies.collectives.health.watchdog import place_in
from tf_config.settings import PROGRESS_VARIABLE
from tf_config.vitals import write_progress

_PAUSE_SECONDS = 0.5
_SECONDS_TO_END = 5.0  # a directory that does not answer may hold it up
_is_told = False


def tell_progress() -> None:
    """Starts to write where the main thread is, if the launcher asks for it; once a process."""
    global _is_told
    path = os.environ.get(PROGRESS_VARIABLE, "")
    if path and not _is_told:
        _is_told = True
        stopped = threading.Event()
        thread = threading.Thread(target=_tell, args=(path, stopped), name="progress", daemon=True)
        thread.start()
        atexit.register(_stop, thread, stopped)


def where(thread: int) -> str:
    """Returns the step that a model's optimizer has made, and the line of the user's program."""
    stack = stack_of(thread)
    _, model = call_in(stack)
    place = place_in(stack)
    iterations = getattr(getattr(model, "optimizer", None), "iterations", None)
    words = [] if iterations is None else [f"behind step {int(iterations.numpy())}"]
    return ", ".join([*words, *([f"in {place}"] if place else [])])


def _tell(path: str, stopped: threading.Event) -> None:
    main = threading.main_thread().ident or 0
    while not stopped.wait(_PAUSE_SECONDS):
        try:
            write_progress(path, where(main))
        except OSError:
            return
        except Exception:  # a model in the making has no optimizer yet, or no iterations
            continue


def _stop(thread: threading.Thread, stopped: threading.Event) -> None:
    # The thread may be the last one to hold a model, and then frees it. Within TensorFlow, Python
    # cannot end a thread: it aborts.
    stopped.set()
    thread.join(_SECONDS_TO_END)
