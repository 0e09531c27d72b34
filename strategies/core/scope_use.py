"""Warns if a program creates a strategy of several workers and trains without it."""

from __future__ import annotations

import atexit
import functools
import threading

from absl import logging

from strategies.diagnostics.calls import call_in
from strategies.diagnostics.stack import stack_of
from strategies.diagnostics.watchdog import place_in
from strategies.utils.background_thread import BackgroundThread
from tf_config.launcher.reports import CREATED, ENTERED, is_reported, report

_PAUSE_SECONDS = 0.1
_SECONDS_TO_END = 5.0
_RULE = "Models must be created and compiled inside strategy.scope() to train with a strategy."
_WAY_OUT = "Create and compile the model inside `with strategy.scope():`."

# Set once the scope of a strategy from TF_CONFIG has been entered in this process.
_entered = threading.Event()


def note_creation() -> None:
    """Reports to the launcher that this process has created a strategy from TF_CONFIG."""
    report(CREATED)


def note_entered() -> None:
    """Records that a scope was entered, and reports it to the launcher."""
    if not _entered.is_set():
        _entered.set()
        report(ENTERED)


def warn_of_training_outside(name: str, workers: int) -> None:
    """Logs a warning when `fit` runs in the main thread before any scope has been entered.

    Keras does not tell a strategy about a model that was created outside of its scope, so a thread
    watches the main thread's calls until a scope is entered. Training that it does not see, such as
    a custom loop or a `fit` of milliseconds, is warned of at the program's end, here or by the
    launcher.

    Args:
      name: the strategy's class. The strategy itself may have been deleted by then.
      workers: the number of workers.
    """
    if workers < 2 or _entered.is_set():
        return
    warned = threading.Event()
    thread = BackgroundThread(functools.partial(_watch, name, workers, warned), "scope_use")
    thread.start()
    atexit.register(_end, name, thread, warned)


def _watch(name: str, workers: int, warned: threading.Event, ended: threading.Event) -> None:
    main = threading.main_thread().ident or 0
    while not ended.wait(_PAUSE_SECONDS) and not _entered.is_set():
        stack = stack_of(main)
        if call_in(stack)[0].startswith("fit("):
            warned.set()
            logging.warning(
                "%s Received: %s, outside of the scope of the %s of %d workers, which was never "
                "entered: each worker trains its own model. %s",
                _RULE, place_in(stack), name, workers, _WAY_OUT,
            )  # fmt: skip
            return


def _end(name: str, thread: BackgroundThread, warned: threading.Event) -> None:
    thread.stop(_SECONDS_TO_END)
    # Under `tf-config`, the launcher warns instead.
    if not (_entered.is_set() or warned.is_set() or is_reported()):
        logging.warning(
            "%s Received: %s, whose scope was never entered: this worker trained its own model, "
            "separate from the others'. %s", _RULE, name, _WAY_OUT,
        )  # fmt: skip
