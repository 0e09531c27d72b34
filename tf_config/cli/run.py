"""`tf-config run`."""

from __future__ import annotations

import argparse
import io
import os
import sys
from pathlib import Path

from tf_config import commands, launch
from tf_config.builder import local_cluster
from tf_config.cli.arguments import add_roles, count, roles
from tf_config.cli.completing import completed
from tf_config.cli.program import add_program, settings

NAME = "run"
USAGE = "[OPTION ...] PROGRAM [ARGUMENT ...]"
SUMMARY = "run a script as several workers on this machine"
EXAMPLE = "tf-config run --workers 2 --log-dir logs train.py --epochs 3"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    add_roles(parser)
    logs = parser.add_argument(
        "--log-dir", type=Path, metavar="DIR", help="write DIR/<task>.log files"
    )
    completed(logs, "directory")
    parser.add_argument(
        "--max-restarts",
        type=count,
        default=0,
        metavar="N",
        help="start all tasks again after a failure (0)",
    )
    add_program(parser, "the cores shared out")


def run(arguments: argparse.Namespace) -> int:
    """Runs the job; returns its exit code."""
    program = [arguments.program, *arguments.arguments]
    asked = roles(arguments)

    def plan(restart: int) -> list[commands.Command]:
        # New ports each time: those of an attempt that was killed may still be in use.
        cluster = local_cluster(asked.workers, chief=asked.chief, ps=asked.ps)
        chosen = settings(arguments) | {commands.RESTARTS_VARIABLE: str(restart)}
        return commands.plan(cluster, program, os.environ, chosen)

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a character that cannot be shown ends no job
    return launch.run(plan, sys.stdout, arguments.log_dir, arguments.max_restarts)
