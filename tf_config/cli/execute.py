"""`tf-config exec`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping

from tf_config.cli.arguments import add_verbosity, say
from tf_config.cli.membership import add_environment, configuration
from tf_config.cli.program import (
    add_metrics,
    add_program,
    add_settings,
    metrics_page,
    request,
    warn_of_options_after_program,
)
from tf_config.cluster import TFConfig
from tf_config.environments import ENVIRONMENTS
from tf_config.errors import ClusterConfigError, quoted
from tf_config.launcher import commands
from tf_config.launcher.metrics import MetricsPage
from tf_config.launcher.settings import (
    BARS_VARIABLE,
    PROGRESS_VARIABLE,
    RESTARTS_VARIABLE,
    SIDECAR_VARIABLE,
    WHOLE_BARS,
)
from tf_config.launcher.sidecar import rendezvous_address
from tf_config.launcher.sidecar_process import fork_sidecar
from tf_config.launcher.task_resolution import neighbours, settings

NAME = "exec"
USAGE = "[OPTION ...] [--] PROGRAM [ARGUMENT ...]"
SUMMARY = "exec a program, with TF_CONFIG derived from the scheduler's variables"
EXAMPLE = "srun -n 4 tf-config exec -- python train.py"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    add_environment(parser)
    add_verbosity(parser)
    add_settings(parser)
    add_metrics(parser, "first port on each host for the tasks' metrics")
    add_program(parser)


def run(arguments: argparse.Namespace) -> int:
    """Replaces this process by the program; raises an error if that fails."""
    warn_of_options_after_program(arguments)
    options = request(arguments)
    what = commands.argv([arguments.program, *arguments.arguments])
    config, origin = configuration(arguments)
    resolved = settings(config, origin, options, os.environ)
    if arguments.verbosity > 0:
        say(f"{config.task} of {', '.join(map(str, config.cluster.addresses))}, from {origin}")
        for setting in resolved:
            say(f"{setting.variable}={setting.value} ({setting.origin})")
    rendezvous = rendezvous_address(config.cluster)
    command = commands.command(config, what, os.environ, resolved, rendezvous)
    # A process that `tf-config run` has started already has a sidecar.
    has_sidecar = origin == "tf_config" and SIDECAR_VARIABLE in os.environ
    page = _page(arguments, config)
    restarts = command.environ[RESTARTS_VARIABLE]
    count = int(restarts) if restarts.isdecimal() else 0
    try:
        of_sidecar = {} if has_sidecar else fork_sidecar(command.environ, config.task, page, count)
        bars = _bars(origin, command.environ)
        os.execvpe(command.argv[0], command.argv, {**command.environ, **bars, **of_sidecar})
    except OSError as error:
        raise ClusterConfigError(
            "The program of exec must exist and be executable. Received: "
            f"{quoted(command.argv[0])} ({error.strerror}). Pass a Python script or a program on "
            "the PATH."
        ) from None


def _page(arguments: argparse.Namespace, config: TFConfig) -> MetricsPage | None:
    """Returns the page of this task's metrics, on a port that no other task of the host has."""
    outer = {PROGRESS_VARIABLE, SIDECAR_VARIABLE} & os.environ.keys()
    if arguments.metrics_port is not None and outer:
        raise ClusterConfigError(
            "--metrics-port must be an option of the outermost tf-config command. Received: "
            "tf-config exec within another one. Pass the option to that one."
        )
    return metrics_page(arguments, neighbours(config).index(config.task))


def _bars(origin: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variable that makes a strategy print progress bars once, if output is a log."""
    environment = ENVIRONMENTS.get(origin)
    is_launchers = environment is not None and environment.makes_terminals
    if BARS_VARIABLE in environ or (os.isatty(1) and not is_launchers):
        return {}
    return {BARS_VARIABLE: WHOLE_BARS}
