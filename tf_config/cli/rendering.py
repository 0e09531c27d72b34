"""Arguments of all kinds of `tf-config render`."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_output(parser: argparse.ArgumentParser) -> None:
    """Adds where the text goes."""
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("-"),
        metavar="FILE",
        help="a new file; - for standard output (-)",
    )


def options(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Returns the options of `tf-config exec` that `add_program` read.

    A task's threads are its CPUs: inside a container TensorFlow would count the whole machine's.
    """
    threads = arguments.threads_per_worker or arguments.cpus_per_worker
    chosen = {"--start-timeout": arguments.start_timeout, "--threads-per-worker": threads}
    return tuple(
        word
        for option, value in chosen.items()
        if value is not None
        for word in (option, f"{value:g}")
    )
