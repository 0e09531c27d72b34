"""`tf-config doctor`."""

from __future__ import annotations

import argparse
import sys

from tf_config.doctor.machine import Machine
from tf_config.doctor.report import examine, exit_code

NAME = "doctor"
USAGE = ""
SUMMARY = "report what is installed, and how to install what is missing"
EXAMPLE = "tf-config doctor"

_CLEAR = "\r\x1b[2K"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds no arguments: the command has none."""


def run(arguments: argparse.Namespace) -> int:
    """Prints a line for each item; returns 2 if a required one is missing."""
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
