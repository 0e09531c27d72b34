"""Arguments of the commands that start a program: `run` and `exec`."""

from __future__ import annotations

import argparse

from tf_config import commands
from tf_config.cli.arguments import positive, seconds
from tf_config.cli.completing import completed


def add_program(parser: argparse.ArgumentParser, default_threads: str) -> None:
    """Adds the program, and what its processes are told."""
    parser.add_argument(
        "--start-timeout",
        type=seconds,
        metavar="SECONDS",
        help="wait so long for the others at the start (300)",
    )
    parser.add_argument(
        "--threads-per-worker",
        type=positive,
        metavar="N",
        help=f"of TensorFlow and OpenMP ({default_threads})",
    )
    program = parser.add_argument("program", help="a Python script, or a program on the PATH")
    rest = parser.add_argument("arguments", nargs=argparse.REMAINDER, help="passed on as they are")
    completed(program, "file")
    completed(rest, "file")


def settings(arguments: argparse.Namespace) -> dict[str, str | None]:
    """Returns the variables that the arguments set."""
    timeout, threads = arguments.start_timeout, arguments.threads_per_worker
    return {
        commands.START_TIMEOUT_VARIABLE: None if timeout is None else f"{timeout:g}",
        **dict.fromkeys(commands.THREAD_VARIABLES, None if threads is None else str(threads)),
    }
