"""`tf-config exec`."""

from __future__ import annotations

import argparse
import os

from tf_config import commands
from tf_config.cli.arguments import add_environment, read
from tf_config.cli.program import add_program, settings
from tf_config.environments import ENVIRONMENTS
from tf_config.errors import ClusterConfigError, shown

NAME = "exec"
USAGE = "[OPTION ...] [--] PROGRAM [ARGUMENT ...]"
SUMMARY = "become a program, with the TF_CONFIG that the scheduler's variables make"
EXAMPLE = "srun -n 4 tf-config exec -- python train.py"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    add_environment(parser)
    add_program(parser, "all")


def run(arguments: argparse.Namespace) -> int:
    """Becomes the program; returns only if that fails."""
    resolved = read(arguments)
    config = ENVIRONMENTS[resolved.origin].locate(resolved.config)
    program = [arguments.program, *arguments.arguments]
    command = commands.command(config, commands.argv(program), os.environ, settings(arguments))
    try:
        os.execvpe(command.argv[0], command.argv, command.environ)
    except OSError as error:
        raise ClusterConfigError(
            f"exec runs a program. Received: {shown(command.argv[0])} ({error.strerror}). "
            "Name a Python script or a program on the PATH."
        ) from None
