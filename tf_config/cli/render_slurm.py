"""`tf-config render slurm`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tf_config.cli.arguments import add_roles, count, positive, roles
from tf_config.cli.program import add_program, add_settings
from tf_config.cli.rendering import add_output, options
from tf_config.render import SlurmJob
from tf_config.roles import Roles

NAME = "slurm"
USAGE = "[OPTION ...] [--] PROGRAM [ARGUMENT ...]"
SUMMARY = "write a batch script for Slurm's sbatch"
EXAMPLE = "tf-config render slurm --workers 4 -o train.sbatch -- train.py"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the kind's arguments."""
    add_roles(parser)
    parser.add_argument("--name", default="train", help="name of the job and its log (train)")
    parser.add_argument("--nodes", type=positive, metavar="N", help="number of nodes")
    parser.add_argument("--time", metavar="H:MM:SS", help="time limit of the job")
    parser.add_argument("--partition", metavar="NAME", help="partition to queue the job in")
    parser.add_argument("--account", metavar="NAME", help="account to charge")
    parser.add_argument("--ntasks-per-node", type=positive, metavar="N", help="tasks per node")
    parser.add_argument("--gres", metavar="LIST", help="generic resources per node, such as gpu:4")
    parser.add_argument("--cpus-per-worker", type=positive, metavar="N", help="CPUs per task")
    parser.add_argument("--gpus-per-worker", type=positive, metavar="N", help="GPUs per task")
    parser.add_argument(
        "--memory", metavar="SIZE", help="memory per node, such as 16G or 64000 (in M)"
    )
    parser.add_argument(
        "--setup",
        action="append",
        default=[],
        metavar="LINE",
        help="line to run first, such as 'module load TensorFlow'",
    )
    parser.add_argument(
        "--sbatch",
        action="append",
        default=[],
        metavar="OPTION",
        help="option for sbatch, as in --sbatch=--exclusive",
    )
    parser.add_argument(
        "--max-restarts",
        type=count,
        default=0,
        metavar="N",
        help="restart all tasks after a failure (0)",
    )
    add_output(parser)
    add_settings(parser, "--cpus-per-worker", gpus=False)
    add_program(parser)


def render(arguments: argparse.Namespace) -> str:
    """Returns the script."""
    requested = roles(arguments)
    if arguments.workers is None and arguments.nodes and arguments.ntasks_per_node:
        total = arguments.nodes * arguments.ntasks_per_node
        requested = Roles.of(total, arguments.ps, arguments.chief, arguments.evaluator)
    return SlurmJob(
        roles=requested,
        program=(arguments.program, *arguments.arguments),
        name=arguments.name,
        nodes=arguments.nodes,
        time=arguments.time,
        partition=arguments.partition,
        account=arguments.account,
        tasks_per_node=arguments.ntasks_per_node,
        gres=arguments.gres,
        cpus=arguments.cpus_per_worker,
        gpus=arguments.gpus_per_worker,
        memory=arguments.memory,
        max_restarts=arguments.max_restarts,
        options=options(arguments),
        setup=tuple(arguments.setup),
        directives=tuple(arguments.sbatch),
        own=_own(),
    ).script()


def _own() -> tuple[str, ...]:
    """Returns the command of this `tf-config`, independent of the PATH of a batch script."""
    script = Path(sys.executable).with_name("tf-config")
    return (str(script),) if script.exists() else (sys.executable, "-m", "tf_config")
