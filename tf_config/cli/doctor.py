"""`tf-config doctor`."""

from __future__ import annotations

import argparse

from tf_config.doctor.machine import Machine
from tf_config.doctor.report import examine, exit_code

NAME = "doctor"
USAGE = ""
SUMMARY = "say what is installed and built, and how to get what is missing"
EXAMPLE = "tf-config doctor"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds no arguments: the command has none."""


def run(arguments: argparse.Namespace) -> int:
    """Prints a line for each item; returns 2 if one is missing without which nothing works."""
    lines = []
    for line in examine(Machine.this()):
        print(line, flush=True)  # at once, because Horovod takes a while
        lines.append(line)
    return exit_code(lines)
