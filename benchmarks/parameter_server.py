"""Training by parameter servers: samples a second, this package and its peers in turn.

    $ .venv/bin/python benchmarks/parameter_server.py --optimizer sgd

The click model of examples/ctr_dnn.py: 26 ids a row in one table of 1,000,001 embeddings of 10
numbers, 13 integers, three layers of 400 units; batches of 512 examples a worker.
"""

from __future__ import annotations

import argparse
import sys

from turns import PEERS, System, compare, on_workers, parser

MODES = ("async", "half_async", "geo", "sync")


def main() -> None:
    given = arguments(__doc__).parse_args()
    systems = [*in_modes(given), coordinator(given), one_process(given)]
    compare(systems, given, less_is_better=False, unit="samples/s")


def arguments(description: str) -> argparse.ArgumentParser:
    """Returns a parser of the arguments of benchmarks with parameter servers."""
    arguments = parser(description.splitlines()[0])
    arguments.add_argument("--ps", type=int, default=1, help="parameter servers (1)")
    arguments.add_argument("--optimizer", choices=["sgd", "adam"], default="sgd", help="(sgd)")
    return arguments


def fit(given: argparse.Namespace, *options: str) -> list[object]:
    """Returns the program that trains the click model by `fit`."""
    return [PEERS / "ctr_fit.py", given.optimizer, *options, *(["--short"] * given.short)]


def in_modes(given: argparse.Namespace, *options: str) -> list[System]:
    """Returns this package with servers, in each mode."""
    return [
        on_workers(
            f"this package, {mode}, fit", given.workers, *fit(given, *options), mode, ps=given.ps
        )
        for mode in MODES
    ]


def coordinator(given: argparse.Namespace) -> System:
    """Returns TensorFlow's own parameter servers."""
    program = [PEERS / "ctr_coordinator.py", given.optimizer, given.workers, given.ps]
    command = [sys.executable, *program, *(["--short"] * given.short)]
    name = "TensorFlow ParameterServer, coordinator, custom loop"
    return System(name, tuple(map(str, command)))


def one_process(given: argparse.Namespace) -> System:
    """Returns a process without servers, with Keras's own layer."""
    return System("one process, fit", tuple(map(str, [sys.executable, *fit(given)])))


if __name__ == "__main__":
    main()
