"""`tf-config doctor`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tf_config.cli.arguments import offer_paths
from tf_config.doctor import operation_trace
from tf_config.doctor.machine import Machine
from tf_config.doctor.report import examine, exit_code

NAME = "doctor"
USAGE = "[OPTION ...]"
SUMMARY = "report what is installed, and how to install what is missing"
EXAMPLE = "tf-config doctor"

_CLEAR = "\r\x1b[2K"
_DIFFERENT = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    trace = parser.add_argument(
        "--trace",
        type=Path,
        metavar="DIR",
        help="instead, show the first operation that differs between workers, from their files in "
        "DIR",
    )
    offer_paths(trace, "directory")


def run(arguments: argparse.Namespace) -> int:
    """Prints a line for each item; returns 2 if a required one is missing.

    With `--trace`, prints the first difference between workers; returns 1 if there is one.
    """
    if arguments.trace is not None:
        traces = operation_trace.read(arguments.trace)
        print("\n".join(operation_trace.describe(traces)))
        return 0 if operation_trace.first_difference(traces) is None else _DIFFERENT
    is_terminal = sys.stdout.isatty()

    def begin(name: str) -> None:
        if is_terminal:
            print(f"looking for {name} ...", end="", flush=True)

    lines = []
    clear = _CLEAR if is_terminal else ""
    try:
        for line in examine(Machine.this(), begin=begin):
            print(f"{clear}{line}", flush=True)  # immediately, because some items take a while
            lines.append(line)
    finally:
        print(clear, end="", flush=True)  # also after an interruption
    return exit_code(lines)
