"""Where the processor time of the tests goes.

    $ KERAS_STRATEGIES_TEST_COSTS=/tmp/costs make test
    $ .venv/bin/python -m tests.support.costs /tmp/costs

A line of the file is one process that ended: the test that it ran for, its kind and its seconds,
user and system. Wall clocks tell little of tests that run beside each other and wait for processes.
Of the programs on clusters there is a line for each check, too, from each process.
"""

from __future__ import annotations

import os
import resource
import sys
from collections import Counter
from pathlib import Path

VARIABLE = "KERAS_STRATEGIES_TEST_COSTS"
# The kind of the lines that tell how the seconds of programs are divided among their checks.
CHECKS = "checks"


def record(test: str, kind: str, seconds: float) -> None:
    """Adds a line to the file that the environment names, if it names one."""
    path = os.environ.get(VARIABLE)
    if path:
        # One write of less than a page: lines of several processes do not mix.
        with open(path, "a") as file:
            file.write(f"{test.partition(' (')[0]}\t{kind}\t{seconds:.2f}\n")


def processor_seconds() -> dict[str, float]:
    """Returns those of this process, and of the ended ones that it started and waited for."""
    return {"tests": seconds_of_this_process(), "commands": _seconds(resource.RUSAGE_CHILDREN)}


def seconds_of_this_process() -> float:
    """Returns the processor seconds of this process until now."""
    return _seconds(resource.RUSAGE_SELF)


def _seconds(of: int) -> float:
    usage = resource.getrusage(of)
    return usage.ru_utime + usage.ru_stime


def main(path: str) -> None:
    """Prints the files, the tests and the checks that cost most."""
    kinds = ("tests", "commands", "programs")
    costs: dict[str, Counter[str]] = {}
    checks: Counter[str] = Counter()
    for line in Path(path).read_text().splitlines():
        test, kind, seconds = line.split("\t")
        if kind == CHECKS:
            checks[test] += float(seconds)
            continue
        for key in (test.partition("::")[0], test, "all"):
            costs.setdefault(key, Counter())[kind] += float(seconds)
    ordered = sorted(costs, key=lambda key: -costs[key].total())
    print("seconds", *kinds, sep="\t")
    for chosen in (
        [key for key in ordered if "::" not in key][:60],
        [key for key in ordered if "::" in key][:120],
    ):
        for key in chosen:
            each = (f"{costs[key][kind]:.0f}" for kind in kinds)
            print(f"{costs[key].total():.0f}", *each, key, sep="\t")
    for check, seconds in checks.most_common(120):
        print(f"{seconds:.0f}", check, sep="\t")


if __name__ == "__main__":
    main(*sys.argv[1:])
