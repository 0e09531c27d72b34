"""`tf-config join`."""

from __future__ import annotations

import argparse
import io
import os
import sys
from dataclasses import replace
from pathlib import Path

from tf_config.address import Address
from tf_config.builder import free_ports
from tf_config.cli.arguments import add_verbosity, offer_paths, say
from tf_config.cli.program import (
    add_program,
    add_settings,
    request,
    warn_of_options_after_program,
)
from tf_config.errors import ClusterConfigError
from tf_config.launcher.commands import Command, argv, command
from tf_config.launcher.console import Console
from tf_config.launcher.joined_worker import JoinedWorker
from tf_config.launcher.places import JobOverError, Place, TakenPlace
from tf_config.launcher.settings import (
    REJOINS_VARIABLE,
    START_TIMEOUT_VARIABLE,
    STEP_TIMEOUT_VARIABLE,
    LaunchOptions,
)
from tf_config.launcher.task_resolution import settings, start_timeout
from tf_config.network_interface import address_of
from tf_config.rendezvous.waiting import Deadline
from tf_config.secret import SECRET_VARIABLE, secret_of

NAME = "join"
USAGE = "[OPTION ...] ADDRESS PROGRAM [ARGUMENT ...]"
SUMMARY = "add a worker to a job of 'run --workers MIN:MAX' that runs"
EXAMPLE = "tf-config join node1:2222 train.py --epochs 3"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    add_settings(parser)
    add_verbosity(parser)
    log_dir = parser.add_argument(
        "--log-dir", type=Path, metavar="DIR", help="write the worker's output to DIR/<task>.log"
    )
    offer_paths(log_dir, "directory")
    parser.add_argument("address", help="where 'tf-config run' says that workers can join")
    add_program(parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs the worker until it is done or leaves; returns its exit code."""
    warn_of_options_after_program(arguments)
    what = argv([arguments.program, *arguments.arguments])
    address, options = Address.parse(arguments.address), request(arguments)
    secret = secret_of()
    if not secret:
        raise ClusterConfigError(
            f"A worker must have the secret of the job that it joins. Received: no "
            f"{SECRET_VARIABLE}. Set it to the job's, which 'tf-config run' has printed unless it "
            "was set there."
        )
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # for characters that the encoding lacks
    quiet = arguments.verbosity < 0
    host = None if arguments.interface is None else address_of(arguments.interface)
    rejoins = False
    while True:
        timeout = options.start_timeout or start_timeout(os.environ)
        deadline = Deadline(timeout, (lambda text: None) if quiet else say, poll_seconds=1.0)
        place = TakenPlace(address, secret, rejoins)
        try:
            taken = place.take(host, free_ports(1, "")[0], deadline)
        except JobOverError:
            say("the job has ended")
            return 0
        console = Console(sys.stdout, taken.config.task, arguments.verbosity)
        worker = JoinedWorker(console, arguments.log_dir, place)
        try:
            worker.run([_command(taken, what, options)])
        except ClusterConfigError as error:
            place.leave(f"cannot start: {error}")
            raise
        code = worker.result()
        if not worker.job_restarts:
            return code
        rejoins = True


def _command(place: Place, what: tuple[str, ...], options: LaunchOptions) -> Command:
    """Returns the command of the worker."""
    own = {
        START_TIMEOUT_VARIABLE: options.start_timeout,
        STEP_TIMEOUT_VARIABLE: options.step_timeout,
    }
    shared = {name: value for name, value in place.variables.items() if own.get(name) is None}
    options = replace(options, variables={**shared, **options.variables})
    resolved = settings(place.config, "tf_config", options, os.environ)
    plain = command(place.config, what, os.environ, resolved, place.rendezvous)
    return replace(plain, environ={**plain.environ, REJOINS_VARIABLE: "1"})
