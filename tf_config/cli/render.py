"""`tf-config render`; its kinds of output are in `render_slurm` and `render_kubernetes`."""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path

from tf_config.cli import render_kubernetes, render_slurm
from tf_config.cli.arguments import add_command
from tf_config.cli.program import warn_of_options_after_program
from tf_config.errors import ClusterConfigError, quoted

NAME = "render"
USAGE = "KIND [OPTION ...] [--] PROGRAM [ARGUMENT ...]"
SUMMARY = "write a job file for a scheduler: a Slurm script or a Kubernetes manifest"
EXAMPLE = render_slurm.EXAMPLE

_KINDS = (render_slurm, render_kubernetes)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the kinds of output with their arguments."""
    kinds = parser.add_subparsers(title="kinds", metavar="KIND", required=True)
    for kind in _KINDS:
        subparser = add_command(kinds, kind, "tf-config render")
        subparser.set_defaults(render=kind.render)


def run(arguments: argparse.Namespace) -> int:
    """Writes the output of the chosen kind."""
    warn_of_options_after_program(arguments)
    text = arguments.render(arguments)
    if str(arguments.output) == "-":
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")  # as in a file, whatever the locale
        print(text, end="")
    else:
        _write_new(arguments.output, text)
    return 0


def _write_new(path: Path, text: str) -> None:
    """Writes a new file, all of it or nothing."""
    try:
        file = path.open("x", encoding="utf-8")
    except FileExistsError:
        raise ClusterConfigError(
            f"--output must name a new file. Received: {quoted(str(path))}, which exists. Remove "
            "it, or choose another name."
        ) from None
    except OSError as error:
        raise _unwritable(path, error) from None
    try:
        with file:
            file.write(text)
    except BaseException as error:
        path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _unwritable(path, error) from None
        raise


def _unwritable(path: Path, error: OSError) -> ClusterConfigError:
    return ClusterConfigError(
        f"--output must name a file that can be written. Received: {quoted(str(path))} "
        f"({error.strerror}). Choose a directory that you can write to."
    )
