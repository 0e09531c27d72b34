"""Arguments that several commands take, and the values they may have."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import NoReturn

from tf_config.cli.completing import completed, completed_by
from tf_config.cluster import VARIABLE, TFConfig
from tf_config.environments import ENVIRONMENTS, Resolved, resolve
from tf_config.errors import ClusterConfigError, shown
from tf_config.roles import Roles


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong, as all other errors do."""

    def error(self, message: str) -> NoReturn:
        """Raises the error that `main` prints."""
        raise ClusterConfigError(f"{message}. '{self.prog} --help' lists what there is.")


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
    file = sources.add_argument(
        "--file", type=Path, help=f"read {VARIABLE} from here; - for standard input"
    )
    completed(file, "file")
    add_environment(sources)


def add_environment(parser: argparse._ActionsContainer) -> None:
    """Adds which environment is read."""
    origin = parser.add_argument(
        "--from",
        dest="origin",
        metavar="ENVIRONMENT",
        help=f"read this one: {', '.join(ENVIRONMENTS)} (default: the first of them that is there)",
    )
    completed_by(origin, ENVIRONMENTS)


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
        return resolved
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ClusterConfigError(
            f"--file names a text file. Received: {shown(str(path))} ({shown(str(error), 80)}). "
            "Correct the path."
        ) from None
    return Resolved(TFConfig.from_json(text), str(path), {})


def count(text: str) -> int:
    """Returns a number from 0 to 99999."""
    if not (text.isascii() and text.isdigit() and len(text) < 6):
        raise argparse.ArgumentTypeError(f"a number is 0 or more, received {shown(text)}")
    return int(text)


def positive(text: str) -> int:
    """Returns a number from 1 to 99999."""
    if count(text) < 1:
        raise argparse.ArgumentTypeError(f"threads are 1 or more, received {shown(text)}")
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
