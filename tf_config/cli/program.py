"""Arguments of the commands that start a program: `run` and `exec`."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from typing import Any

from tf_config.cli.arguments import count, offer_paths, port, positive, say, seconds
from tf_config.errors import ClusterConfigError, quoted
from tf_config.launcher.commands import MODULE, script_of
from tf_config.launcher.metrics import MetricsPage
from tf_config.launcher.settings import LaunchOptions

_METRICS_HOST = "127.0.0.1"
_LAST_PORT = 65535


def add_settings(
    parser: argparse.ArgumentParser, threads: str = "an equal share", gpus: bool = True
) -> None:
    """Adds the arguments for the settings of the tasks' processes.

    Args:
      parser: the parser to add the arguments to.
      threads: a description of the default number of threads.
      gpus: whether to add the argument for the number of GPUs.
    """
    parser.add_argument(
        "--start-timeout",
        type=seconds,
        metavar="SECONDS",
        help="time limit for all tasks to start (300)",
    )
    parser.add_argument(
        "--step-timeout",
        type=seconds,
        metavar="SECONDS",
        help="time limit for a wait within a step (none)",
    )
    parser.add_argument(
        "--threads-per-worker",
        type=positive,
        metavar="N",
        help=f"threads of TensorFlow and OpenMP ({threads})",
    )
    if gpus:
        parser.add_argument(
            "--gpus-per-worker",
            type=count,
            metavar="N",
            help="GPUs that each worker sees, by CUDA_VISIBLE_DEVICES",
        )
    parser.add_argument(
        "--interface",
        metavar="NAME",
        help="interface for Horovod, NCCL and MPI, such as eth2",
    )


class _ProgramAction(argparse.Action):
    """Stores the program, unless a module has taken its place."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Stores the program."""
        if namespace.program == MODULE:
            parser.error(f"argument {MODULE}: the module must be a separate argument")
        namespace.program = values


class _ModuleAction(argparse.Action):
    """Takes all words after `-m` as a module and its arguments, instead of a program.

    The program is then `-m`, and its arguments are the module's name and arguments.
    """

    def __init__(self, program: argparse.Action, **options: Any):
        super().__init__(nargs=argparse.REMAINDER, **options)
        self.default = argparse.SUPPRESS
        self._program = program

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Stores the words."""
        if not values:
            parser.error(f"argument {MODULE}: expected the name of a module")
        namespace.program, namespace.arguments = MODULE, values
        self._program.required = False  # otherwise argparse would report it as missing


def add_program(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments for the program, its arguments and its environment."""
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="variable of the tasks; without VALUE, as it is here",
    )
    program = parser.add_argument(
        "program", action=_ProgramAction, help="a Python script, or a program on the PATH"
    )
    parser.add_argument(
        MODULE,
        action=_ModuleAction,
        dest="program",
        program=program,
        metavar="MODULE [ARGUMENT ...]",
        help="run a module instead, as python -m does",
    )
    rest = parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="passed to the program unchanged"
    )
    rest.required = False  # otherwise argparse would report it, too, if the program is missing
    parser.set_defaults(parser=parser)
    offer_paths(program, "file")
    offer_paths(rest, "file")


def add_metrics(parser: argparse.ArgumentParser, port_help: str) -> None:
    """Adds the arguments for a page of metrics.

    Args:
      parser: the parser to add the arguments to.
      port_help: a description of the port.
    """
    parser.add_argument("--metrics-port", type=port, metavar="P", help=port_help)
    parser.add_argument(
        "--metrics-host",
        metavar="ADDRESS",
        help=f"address to serve the metrics on ({_METRICS_HOST})",
    )


def metrics_page(arguments: argparse.Namespace, number: int = 0) -> MetricsPage | None:
    """Returns the page of metrics, whose port is taken from now on; None if none is requested.

    Args:
      arguments: the arguments of `add_metrics`.
      number: added to the port.

    Raises:
      ClusterConfigError: if the page cannot be served.
    """
    host, first = arguments.metrics_host, arguments.metrics_port
    if first is None:
        if host is not None:
            raise ClusterConfigError(
                "--metrics-host requires --metrics-port. Received: --metrics-host "
                f"{quoted(host)} only. Add, for example, --metrics-port 9100."
            )
        return None
    if not hasattr(os, "memfd_create"):
        raise ClusterConfigError(
            "--metrics-port requires Linux, where tasks report their numbers in shared memory. "
            f"Received: {sys.platform}. Omit the option."
        )
    if first + number > _LAST_PORT:
        raise ClusterConfigError(
            f"--metrics-port must leave a port for each task of this host. Received: {first}, and "
            f"{number} tasks before this one. Choose a lower port."
        )
    return MetricsPage(_METRICS_HOST if host is None else host, first + number)


def request(arguments: argparse.Namespace) -> LaunchOptions:
    """Returns the settings given as arguments.

    Raises:
      ClusterConfigError: if a variable is invalid or has no value.
    """
    return LaunchOptions(
        start_timeout=arguments.start_timeout,
        step_timeout=arguments.step_timeout,
        threads=arguments.threads_per_worker,
        gpus=getattr(arguments, "gpus_per_worker", None),
        interface=arguments.interface,
        variables=dict(_variable(text) for text in getattr(arguments, "env", [])),
        is_verbose=getattr(arguments, "verbosity", 0) > 0,
        # With a minimum, the launcher has to know of checkpoints, to restart with more after one.
        has_metrics=any(
            getattr(arguments, name, None) is not None for name in ("metrics_port", "min_workers")
        ),
        server_saves=getattr(arguments, "server_saves", None),
        restarts_servers=bool(
            getattr(arguments, "ps", 0) and getattr(arguments, "max_restarts", 0)
        ),
    )


def warn_of_options_after_program(arguments: argparse.Namespace) -> None:
    """Prints a warning about the command's options after the program, to which they are passed.

    Options that occur in the script's text are meant for the script, and are not reported.
    """
    script = script_of([arguments.program, *arguments.arguments])
    text = ""
    if script is not None and script.is_file():
        with contextlib.suppress(OSError):  # reported when the script runs
            text = script.read_text(errors="replace")
    known = arguments.parser._option_string_actions  # noqa: SLF001  # argparse names none
    misplaced = [
        word
        for word in arguments.arguments
        if (name := word.partition("=")[0]).startswith("--")
        and name in known
        and name != "--help"
        and not re.search(rf"""["'](--)?{re.escape(name[2:])}\b""", text)
    ]
    if misplaced:
        say(
            f"warning: {', '.join(misplaced)} follows {script or arguments.program}, so it is "
            f"passed to it. Options of {arguments.parser.prog} must precede the program."
        )


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        value = os.environ.get(name, "")
    if not name or not (equals or name in os.environ):
        raise ClusterConfigError(
            "--env must be NAME=VALUE, or the name of a variable that is set. Received: "
            f"{quoted(text)}. Add a value."
        )
    return name, value
