"""Runs systems in turn, A B C C B A, and prints their medians and ratios as a table.

A machine's speed changes from minute to minute, so only what was measured in one run, in turn, is
compared; every second round is in the opposite order, so that none always follows the same one. A
system is a program that prints one line `RESULT {"what": number, ...}`, `RESULT` and JSON; it
prints it once, on whichever of its processes it likes, or each of its workers does.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEERS = Path(__file__).resolve().parent / "peers"
CORES = os.cpu_count() or 1
THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
BEFORE = ", before"  # the end of the name of a system of an earlier version


@dataclass(frozen=True)
class System:
    """A system to measure.

    Attributes:
      name: its name in the table.
      command: measures it once.
      threads: of each of its processes.
      root: the directory of the package that it imports.
    """

    name: str
    command: tuple[str, ...]
    threads: int = 1
    root: Path = ROOT

    @property
    def is_ours(self) -> bool:
        return self.name.startswith("this package")

    def before(self, root: Path) -> System:
        """Returns the same program with the package of another directory."""
        return replace(self, name=self.name + BEFORE, root=root)


def on_workers(
    name: str,
    workers: int,
    *program: object,
    ps: int = 0,
    options: Sequence[object] = (),
    threads: int = 1,
) -> System:
    """Returns a system whose program `tf-config run` starts, one thread a process by default."""
    run = [sys.executable, "-m", "tf_config", "run", "--workers", workers, "--ps", ps]
    command = [*run, "--threads-per-worker", threads, *options, *program]
    return System(name, tuple(map(str, command)), threads)


def in_one_process(name: str, *program: object) -> System:
    """Returns a system of one process that uses all cores, as a user without workers runs it."""
    return System(name, tuple(map(str, [sys.executable, *program])), CORES)


def compare(
    systems: Sequence[System], given: argparse.Namespace, less_is_better: bool, unit: str
) -> None:
    """Measures systems, prints the tables, and writes all numbers where `--json` says.

    With `--before`, each system of this package also runs with the package of another checkout: the
    same program, or none where it uses what is not there yet. With `--only`, systems with other
    names are left out. `plot.py` draws what is written.
    """
    names = [system.name for system in systems]
    systems = [each for each in systems if any(part in each.name for part in given.only or [""])]
    if not systems:
        sys.exit(
            "--only must be a part of the name of a system. Received: "
            f"{', '.join(given.only)}; the systems are: {'; '.join(names)}."
        )
    if given.before is not None and not any(system.is_ours for system in systems):
        sys.exit("--before cannot be used here, because none of the systems is of this package.")
    both = []
    for system in systems:
        both.append(system)
        if given.before is not None and system.is_ours:
            both.append(system.before(given.before))
    found = measured(both, given.rounds, given.timeout)
    now = {name: values for name, values in found.items() if not name.endswith(BEFORE)}
    print(table(now, less_is_better))
    for name, values in now.items():
        if values and found.get(name + BEFORE):
            print(f"\n{table({name: values, name + BEFORE: found[name + BEFORE]}, less_is_better)}")
    if given.json is not None:
        content = {"unit": unit, "less_is_better": less_is_better, "found": now}
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(content, indent=1))


def measured(
    systems: Sequence[System], rounds: int, timeout: float
) -> dict[str, dict[str, list[float]]]:
    """Returns what each system measured in each round, by system and by what is measured.

    A peer or an earlier version that fails is named on standard error and has no numbers, not even
    those of other rounds.

    Raises:
      RuntimeError: if this package fails; the message has the end of its output.
    """
    found: dict[str, dict[str, list[float]]] = {system.name: {} for system in systems}
    failed: set[System] = set()
    for number in range(rounds):
        for system in systems if number % 2 == 0 else reversed(systems):
            if system in failed:
                continue
            print(f"round {number + 1} of {rounds}: {system.name}", file=sys.stderr)
            try:
                (result,) = _results(system, 1, timeout)
            except RuntimeError as error:
                if system.is_ours and system.root == ROOT:
                    raise
                print(f"Left out: {system.name}. {error}", file=sys.stderr)
                failed.add(system)
                found[system.name].clear()
                continue
            for what, value in result.items():
                found[system.name].setdefault(what, []).append(value)
    return found


def largest(system: System, workers: int, timeout: float | None = None) -> dict[str, float]:
    """Returns the larger numbers of a system's workers, each of which prints a result.

    Raises:
      RuntimeError: if it fails, or some print none; the message has the end of its output.
    """
    results = _results(system, workers, timeout)
    print(f"{system.name}: {results}", file=sys.stderr)
    return {name: max(result[name] for result in results) for name in results[0]}


def memory(name: str) -> float:
    """Returns a number of this process's memory, in MiB: VmRSS is what it has, VmHWM the peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{name}:"))
    return int(line.split()[1]) / 1024


def _results(system: System, count: int, timeout: float | None) -> list[Mapping[str, float]]:
    process = subprocess.Popen(
        system.command,
        env={
            **os.environ,
            **dict.fromkeys(THREADS, str(system.threads)),
            "PYTHONPATH": str(system.root),
            "TF_CPP_MIN_LOG_LEVEL": "2",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    ended = ""
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        ended = f", for it took longer than {timeout:g} s"
    finally:
        if process.poll() is None:  # nothing of it may run beside the next one
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
    results = re.findall(r"RESULT (\{.*\})", output)
    if process.returncode or len(results) != count:
        raise RuntimeError(
            f"A system prints {count} results and ends with 0. Received: {len(results)}, and "
            f"{process.returncode} from {' '.join(system.command)}{ended}:\n{output[-3000:]}"
        )
    return [json.loads(result) for result in results]


def table(found: Mapping[str, Mapping[str, Sequence[float]]], less_is_better: bool) -> str:
    """Returns medians as a table of Markdown, with each one's ratio to the first system's.

    A ratio above 1 says that the first system is better by that factor. Behind it, where there
    were several rounds, are the smallest and the largest ratio of a round.

    >>> print(table({"a": {"ms": [1, 9, 2]}, "b": {"ms": [3, 4, 5]}}, less_is_better=True))
    | system | ms |
    |---|---|
    | a | 2.00 |
    | b | 4.00 (2.00 x; 0.44 to 3.00) |
    """
    first = next(iter(found.values()))
    lines = [f"| system | {' | '.join(first)} |", "|---" * (1 + len(first)) + "|"]
    for system, values in found.items():
        cells = []
        for what, reference in first.items():
            if what not in values:
                cells.append("-")
                continue
            ours, theirs = statistics.median(reference), statistics.median(values[what])
            number = f"{theirs:.2f}" if theirs < 100 else f"{theirs:,.0f}"
            if values is not first:
                ratio = _ratio(ours, theirs, less_is_better)
                pairs = zip(reference, values[what], strict=True)
                each = [_ratio(*pair, less_is_better) for pair in pairs]
                spread = f"; {min(each):.2f} to {max(each):.2f}" if len(each) > 1 else ""
                number += f" ({ratio:.2f} x{spread})"
            cells.append(number)
        lines.append(f"| {system} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _ratio(ours: float, theirs: float, less_is_better: bool) -> float:
    return theirs / ours if less_is_better else ours / theirs


def _checkout(text: str) -> Path:
    path = Path(text).absolute()
    if not (path / PEERS.relative_to(ROOT)).is_dir():
        raise argparse.ArgumentTypeError(f"must be a checkout of this package. Received: {text}.")
    return path


def parser(description: str, compares: bool = True) -> argparse.ArgumentParser:
    """Returns a parser of the arguments that benchmarks have, and of those of `compare`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--workers", type=int, default=2, help="processes that train (2)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each system runs (3)")
    parser.add_argument("--timeout", type=float, default=600, help="seconds a run may take (600)")
    if compares:
        parser.add_argument("--json", type=Path, help="a file for the numbers of all rounds")
        parser.add_argument(
            "--before", type=_checkout, help="a checkout of an earlier version, to compare with"
        )
        parser.add_argument(
            "--only",
            action="append",
            metavar="NAME",
            help="measure systems with this in their name",
        )
    parser.add_argument("--short", action="store_true", help="a few steps, to see that all runs")
    return parser
