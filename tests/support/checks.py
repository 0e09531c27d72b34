"""The checks of a program of tests/distributed: its functions named `check_*`, in their order.

One job runs all of them, for to start workers and to trace functions takes long; pytest reports
each as a test of its own, see check_jobs.py. This module is imported by every worker, so it
imports little.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path

from tests.support import costs

# The names of the checks to run, with commas; all where it is not set.
CHOICE = "KERAS_STRATEGIES_TEST_CHECKS"
BEGUN, PASSED = "{} begins", "{} passed"


def run_checks(namespace: dict, wait: Callable[[], None] | None = None) -> None:
    """Runs the checks of a program, and says of each that it begins and that it has passed.

    A check that raises ends the program: the workers would not be in step otherwise.

    Args:
      namespace: `globals()` of the program.
      wait: waits for all workers between two checks, so that none dies while another one still
        is in the check before. By default the barrier of the program's `strategy`, if it has one.
    """
    if wait is None and "strategy" in namespace:
        import strategies

        wait = functools.partial(strategies.barrier, namespace["strategy"])
    checks = {
        name: each
        for name, each in namespace.items()
        if name.startswith("check_") and each.__module__ == namespace["__name__"]
    }
    chosen = os.environ.get(CHOICE, "")
    for number, name in enumerate(chosen.split(",") if chosen else checks):
        if number and wait is not None:
            wait()
        print(BEGUN.format(name), flush=True)
        before = costs.seconds_of_this_process()
        checks[name]()
        seconds = costs.seconds_of_this_process() - before
        costs.record(f"{Path(namespace['__file__']).stem}.{name}", costs.CHECKS, seconds)
        print(PASSED.format(name), flush=True)
