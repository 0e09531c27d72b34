"""The command `tf-config`: each subcommand is in a file with its arguments and its action."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib import metadata

from tf_config.cli import (
    build,
    check,
    completion,
    doctor,
    execute,
    install_horovod,
    join,
    plan,
    render,
    run,
    show,
    split,
)
from tf_config.cli.arguments import Parser, add_command
from tf_config.errors import ClusterConfigError

_COMMANDS = (
    build, show, check, run, join, execute, render, split, plan, install_horovod, doctor, completion
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `tf-config` with `argv` and returns its exit code.

    The code is 0 for success and 2 for an invalid argument or configuration (one line on standard
    error); `run` and `join` return the exit code of the job or worker.
    """
    try:
        arguments = parser().parse_args(argv)
        return arguments.function(arguments)
    except ClusterConfigError as error:
        print(f"tf-config: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of the output has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _version() -> str:
    try:
        return f"keras-strategies {metadata.version('keras-strategies')}"
    except metadata.PackageNotFoundError:
        return "keras-strategies (not installed; run from its source directory)"


def parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands and their arguments."""
    parser = Parser(
        prog="tf-config",
        description="Builds, checks, shows and launches the topology of a training job.",
    )
    parser.add_argument("--version", action="version", version=_version())
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        subparser = add_command(subparsers, command, "tf-config")
        subparser.set_defaults(function=command.run, whole_parser=parser)
    return parser
