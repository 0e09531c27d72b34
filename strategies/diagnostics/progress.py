"""Reports to the launcher: the step, shown if the process is killed, and the process's numbers."""

from __future__ import annotations

import atexit
import functools
import threading
from collections.abc import Callable

from strategies.diagnostics.calls import call_in
from strategies.diagnostics.metrics import Reporter, are_reported
from strategies.diagnostics.stack import stack_of
from strategies.diagnostics.watchdog import place_in
from strategies.utils.background_thread import BackgroundThread
from tf_config.launcher.progress_file import file_of, write_progress, write_report

_PAUSE_SECONDS = 0.5
_SECONDS_TO_END = 5.0  # a network directory that does not respond may delay the thread
_has_started = False


def start_progress_reports() -> None:
    """Starts reporting the main thread's position if the launcher reads it; once per process."""
    global _has_started
    path = file_of()
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
    reports: list[Callable[[], None]] = [lambda: write_progress(path, where(main))]
    if are_reported():
        reporter = Reporter()
        reports.append(lambda: write_report(path, reporter.report()))
    while not stopped.wait(_PAUSE_SECONDS):
        for write in reports:
            try:
                write()
            except OSError:
                return
            except Exception:  # a model under construction may have no optimizer or iterations yet
                continue
