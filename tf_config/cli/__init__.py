"""The command `tf-config`: one file a subcommand, each with its arguments and what it does."""

from __future__ import annotations

import argparse
import functools
import os
import signal
import sys
from collections.abc import Sequence

from tf_config.cli import build, check, completion, doctor, execute, run, show, split
from tf_config.cli.arguments import Parser
from tf_config.errors import ClusterConfigError

_COMMANDS = (build, show, check, run, execute, split, doctor, completion)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `tf-config` with `argv` and returns its exit code.

    0 is success, 2 a wrong argument or configuration (one line on standard error); `run`
    returns the job's own code.
    """
    try:
        arguments = parser().parse_args(argv)
        return arguments.function(arguments)
    except ClusterConfigError as error:
        print(f"tf-config: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of our output has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands and their arguments."""
    parser = Parser(
        prog="tf-config",
        description="Builds, checks, shows and launches the topology of a training job.",
    )
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        subparser = subparsers.add_parser(
            command.NAME,
            help=command.SUMMARY,
            usage=f"tf-config {command.NAME} {command.USAGE}".rstrip(),
            description=f"{command.SUMMARY[0].upper()}{command.SUMMARY[1:]}.",
            formatter_class=functools.partial(argparse.HelpFormatter, max_help_position=32),
            epilog=f"example: {command.EXAMPLE}",
        )
        command.add_arguments(subparser)
        subparser.set_defaults(function=command.run)
    return parser
