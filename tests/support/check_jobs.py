"""The checks of tests/distributed as tests: what pytest knows of them, and the jobs they run in."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from tests.support.checks import BEGUN, PASSED

PROGRAMS = Path(__file__).resolve().parent.parent / "distributed"


@dataclasses.dataclass(frozen=True)
class Check:
    """A function of a program.

    Attributes:
      program: a file's name in tests/distributed.
      name: the function's, from "check_" on.
    """

    program: str
    name: str


def checks_of(
    *programs: str, only: Sequence[str] = (), slow: Sequence[str] = (), marks: object = ()
) -> list:
    """Returns the checks of programs as parameters of a test, by reading the files.

    Args:
      *programs: the files' names in tests/distributed.
      only: the names of some, without "check_"; all by default.
      slow: the names of those that are marked slow.
      marks: of each of them.
    """
    checks = [Check(program, name) for program in programs for name in _names(program, only)]
    unknown = {*slow} - {check.name.removeprefix("check_") for check in checks}
    if unknown:
        raise ValueError(f"No check of {programs} has these names. Received: {sorted(unknown)}")
    return [
        pytest.param(
            check,
            marks=pytest.mark.slow if check.name.removeprefix("check_") in slow else marks,
            id=f"{Path(check.program).stem}.{check.name.removeprefix('check_')}",
        )
        for check in checks
    ]


def _names(program: str, only: Sequence[str]) -> list[str]:
    tree = ast.parse((PROGRAMS / program).read_text())
    names = [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
    ]
    chosen = [f"check_{name}" for name in only] or names
    missing = {*chosen} - {*names}
    if missing or not chosen:
        raise ValueError(f"{program} has checks {names}. Received: {sorted(missing)}")
    return chosen


def beside(request: pytest.FixtureRequest) -> list[Check]:
    """Returns the checks of one program that this session asks for with a test's parameters.

    What was deselected is not among them, so that `-k` of one check runs no other.
    """

    def others(item: pytest.Item) -> dict[str, str]:
        parameters = item.callspec.params
        return {name: repr(value) for name, value in parameters.items() if name != "check"}

    mine = request.node
    found = [
        item.callspec.params["check"]
        for item in request.session.items
        if item.path == mine.path
        and getattr(item, "originalname", None) == mine.originalname
        and others(item) == others(mine)
    ]
    return [check for check in found if check.program == mine.callspec.params["check"].program]


class CheckJobs:
    """Runs each program once for all of its checks, and once more for those behind a failure."""

    def __init__(self):
        self._outcomes: dict[object, dict[str, str | None]] = {}

    def failure(
        self,
        key: object,
        check: str,
        checks: Callable[[], Iterable[str]],
        run: Callable[[list[str]], tuple[int | None, str]],
        workers: int,
    ) -> str | None:
        """Returns how a check failed, or None if it passed on all workers.

        Args:
          key: what makes another job: the program, its arguments, the cluster and the environment.
          check: the check's name.
          checks: returns the names of all that may run in one job.
          run: starts the job with some of them; returns its exit code, None if it did not end,
            and its output.
          workers: how many there are; 0 is one process without a launcher.
        """
        outcomes = self._outcomes.setdefault(key, {})
        while check not in outcomes:
            chosen = [name for name in checks() if name not in outcomes]
            code, output = run(chosen)
            outcomes |= outcomes_of(chosen, workers, code, output)
        return outcomes[check]


def outcomes_of(
    checks: Sequence[str], workers: int, code: int | None, output: str
) -> dict[str, str | None]:
    """Returns the checks that a job has decided on, with None or how they failed.

    >>> outcomes_of(["check_a", "check_b"], 1, 1, "[worker 0] check_a begins\\nmust be 2")
    {'check_a': 'check_a (exit code 1)\\nmust be 2'}
    """
    lines = output.splitlines()
    prefixes = [f"[worker {worker}] " for worker in range(workers)] or [""]

    def on_all(message: str) -> bool:
        return all(prefix + message in lines for prefix in prefixes)

    ended = "not done in time" if code is None else f"exit code {code}"
    if not any(line.endswith(BEGUN.format(checks[0])) for line in lines):
        return dict.fromkeys(checks, f"no check was begun ({ended})\n{output}")
    outcomes: dict[str, str | None] = {}
    for name in checks:
        if not on_all(PASSED.format(name)):
            begun = [n for n, line in enumerate(lines) if line.endswith(BEGUN.format(name))]
            told = "\n".join(lines[begun[0] + 1 :] if begun else lines)
            return {**outcomes, name: f"{name} ({ended})\n{told}"}
        outcomes[name] = None
    if code != 0:
        outcomes[checks[-1]] = f"all checks passed, and then the job failed ({ended})\n{output}"
    return outcomes
