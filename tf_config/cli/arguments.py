"""Arguments that several commands take, and the values they may have."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from tf_config.cluster import VARIABLE, TFConfig
from tf_config.environments import ENVIRONMENTS, Resolved, resolve
from tf_config.errors import ClusterConfigError, shown
from tf_config.roles import Roles


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong, as all other errors do."""

    def error(self, message: str) -> NoReturn:
        """Raises the error that `main` prints."""
        raise ClusterConfigError(f"{message}. '{self.prog} --help' lists what there is.")


def add_command(
    subparsers: argparse._SubParsersAction[Any], command: ModuleType, prefix: str
) -> argparse.ArgumentParser:
    """Adds a command, described by the constants of its module, and returns its parser."""
    subparser = subparsers.add_parser(
        command.NAME,
        help=command.SUMMARY,
        usage=f"{prefix} {command.NAME} {command.USAGE}".rstrip(),
        description=f"{command.SUMMARY[0].upper()}{command.SUMMARY[1:]}.",
        formatter_class=functools.partial(argparse.HelpFormatter, max_help_position=32),
        epilog=f"example: {command.EXAMPLE}",
    )
    command.add_arguments(subparser)
    return subparser


def add_roles(parser: argparse.ArgumentParser) -> None:
    """Adds how many tasks of each type there are."""
    parser.add_argument("--workers", type=count, metavar="N", help="default: 1")
    parser.add_argument("--ps", type=count, default=0, metavar="N", help="parameter servers")
    parser.add_argument("--chief", action="store_true", help="add a chief, the first to train")
    parser.add_argument("--evaluator", action="store_true", help="add an evaluator")


def roles(arguments: argparse.Namespace) -> Roles:
    """Returns the roles that `add_roles` read."""
    workers = 1 if arguments.workers is None else arguments.workers
    return Roles(workers, arguments.ps, arguments.chief, arguments.evaluator)


def add_source(parser: argparse.ArgumentParser) -> None:
    """Adds where TF_CONFIG is read from: a file, or an environment."""
    sources = parser.add_mutually_exclusive_group()
    sources.add_argument(
        "--file", type=Path, help=f"read {VARIABLE} from here; - for standard input"
    )
    _add_origin(sources)
    _add_named_roles(parser)


def add_environment(parser: argparse.ArgumentParser) -> None:
    """Adds which environment is read, and the roles of its tasks."""
    _add_origin(parser)
    _add_named_roles(parser)


def _add_origin(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--from",
        dest="origin",
        metavar="ENVIRONMENT",
        help=f"read this one: {', '.join(ENVIRONMENTS)} (default: the first of them that is there)",
    )


def _add_named_roles(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ps", type=count, metavar="N", help="the scheduler's last N tasks are ps")
    parser.add_argument("--chief", action="store_true", help="the first is the chief")
    parser.add_argument("--evaluator", action="store_true", help="the very last is an evaluator")


def read(arguments: argparse.Namespace) -> Resolved:
    """Returns what this process is part of, from where `add_source` says.

    Raises:
      ClusterConfigError: if there is nothing to read, or it is wrong.
    """
    path = getattr(arguments, "file", None)
    if path is None:
        resolved = resolve(os.environ, arguments.origin)
        if resolved is None:
            raise ClusterConfigError(
                f"The cluster is read from {VARIABLE} or a scheduler's variables. Received: none "
                f"of {', '.join(ENVIRONMENTS)} is there. Set {VARIABLE}, start this under a "
                "scheduler, or see 'tf-config build --help'."
            )
        return _with_roles(resolved, arguments)
    if _named_roles(arguments):
        raise ClusterConfigError(
            f"A file says itself which role each task has. Received: {_named_roles(arguments)}. "
            "Leave it out, or correct the file."
        )
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ClusterConfigError(
            f"--file names a text file. Received: {shown(str(path))} ({shown(str(error), 80)}). "
            "Correct the path."
        ) from None
    return Resolved(TFConfig.from_json(text), str(path), {})


def _named_roles(arguments: argparse.Namespace) -> str:
    """Returns the options that `_add_named_roles` read, as one text; empty if there are none."""
    given = {
        f"--ps {arguments.ps}": arguments.ps is not None,
        "--chief": arguments.chief,
        "--evaluator": arguments.evaluator,
    }
    return " ".join(option for option, there in given.items() if there)


def _with_roles(resolved: Resolved, arguments: argparse.Namespace) -> Resolved:
    """Returns what was read, with the roles that the options give to its tasks."""
    options = _named_roles(arguments)
    if not options:
        return resolved
    if ENVIRONMENTS[resolved.origin].names_roles:
        raise ClusterConfigError(
            f"The environment '{resolved.origin}' says itself which role each task has. "
            f"Received: {options}. Leave it out, or choose another environment with --from."
        )
    total = len(resolved.config.cluster.training_tasks)
    chosen = Roles.of(total, arguments.ps or 0, arguments.chief, arguments.evaluator)
    return replace(resolved, config=chosen.given_to(resolved.config))


def count(text: str) -> int:
    """Returns a number from 0 to 99999."""
    if not (text.isascii() and text.isdigit() and len(text) < 6):
        raise argparse.ArgumentTypeError(f"a number is 0 or more, received {shown(text)}")
    return int(text)


def positive(text: str) -> int:
    """Returns a number from 1 to 99999."""
    if count(text) < 1:
        raise argparse.ArgumentTypeError(f"a number is 1 or more, received {shown(text)}")
    return int(text)


def seconds(text: str) -> float:
    """Returns a time in seconds, above 0."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"a time in seconds is above 0, received {shown(text)}")
    return value
