"""Arguments common to all kinds of `tf-config render`."""

from __future__ import annotations

import argparse
from pathlib import Path

from tf_config.cli.arguments import offer_paths
from tf_config.cli.program import request


def add_output(parser: argparse.ArgumentParser) -> None:
    """Adds the argument for the output file."""
    output = parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("-"),
        metavar="FILE",
        help="file to create; - for standard output (-)",
    )
    offer_paths(output, "file")


def options(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Returns the options of `tf-config exec` for the settings and variables in the arguments.

    By default, a task has as many threads as CPUs: in a container, TensorFlow would count the CPUs
    of the whole machine.
    """
    launch = request(arguments)
    threads = launch.threads or arguments.cpus_per_worker
    values = {
        "--start-timeout": None if launch.start_timeout is None else f"{launch.start_timeout:g}",
        "--step-timeout": None if launch.step_timeout is None else f"{launch.step_timeout:g}",
        "--threads-per-worker": None if threads is None else str(threads),
        "--interface": launch.interface,
    }
    words = [(option, value) for option, value in values.items() if value is not None]
    words += [("--env", f"{name}={value}") for name, value in launch.variables.items()]
    return tuple(word for pair in words for word in pair)
