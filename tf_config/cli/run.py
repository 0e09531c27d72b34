"""`tf-config run`."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from tf_config.address import Address
from tf_config.cli.arguments import (
    add_hosts,
    add_roles,
    add_verbosity,
    count,
    hosts,
    offer_paths,
    pause,
    port,
    positive,
    ps_hosts,
    roles,
    say,
)
from tf_config.cli.program import (
    add_metrics,
    add_program,
    add_settings,
    metrics_page,
    request,
    warn_of_options_after_program,
)
from tf_config.environments.allocation import find_allocation
from tf_config.environments.detect import ENVIRONMENTS
from tf_config.errors import ClusterConfigError, quoted
from tf_config.launcher import runner as launch
from tf_config.launcher.commands import MODULE, Command, gpus, is_script
from tf_config.launcher.console import Console
from tf_config.launcher.job import JobSpec, shell_line
from tf_config.launcher.metrics import MetricsPage
from tf_config.launcher.places import PlaceServer
from tf_config.launcher.restarts import Restarts
from tf_config.network_interface import own_address
from tf_config.secret import SECRET_VARIABLE, new_secret, secret_of
from tf_config.worker_range import WorkerRange

_HERE = "127.0.0.1"

NAME = "run"
USAGE = "[OPTION ...] PROGRAM [ARGUMENT ...]"
SUMMARY = "run a script as several tasks, on this machine or on several over ssh"
EXAMPLE = "tf-config run --hosts node1:2,node2:2 train.py --epochs 3"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    add_roles(parser, may_change=True)
    add_hosts(parser, "free ones")
    parser.add_argument(
        "--ssh",
        metavar="COMMAND",
        help="ssh command, as in --ssh 'ssh -p 2222' (ssh, or that of --allocation)",
    )
    add_settings(parser)
    add_metrics(parser, "port on which to serve metrics for Prometheus")
    add_verbosity(parser)
    log_dir = parser.add_argument(
        "--log-dir", type=Path, metavar="DIR", help="write each task's output to DIR/<task>.log"
    )
    offer_paths(log_dir, "directory")
    parser.add_argument(
        "--max-restarts",
        type=count,
        default=0,
        metavar="N",
        help="restart after a failure, N times at most (0)",
    )
    parser.add_argument(
        "--server-saves",
        type=pause,
        metavar="SECONDS",
        help="how often servers save, for restarts (30; 0: never)",
    )
    parser.add_argument(
        "--min-workers",
        type=positive,
        metavar="N",
        help="restart with N workers or more while some are lost",
    )
    parser.add_argument(
        "--join-port",
        type=port,
        metavar="P",
        help="port for tf-config join, with MIN:MAX (a free one)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the commands without running them"
    )
    add_program(parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs the job; returns its exit code."""
    elastic = arguments.workers if isinstance(arguments.workers, WorkerRange) else None
    _check_elastic(arguments, elastic)
    job = JobSpec(
        roles(arguments),
        [arguments.program, *arguments.arguments],
        request(arguments),
        hosts(arguments),
        ps_hosts(arguments),
        _remote_shell(arguments),
        arguments.port,
        elastic,
    )
    if arguments.min_workers is not None and not arguments.max_restarts:
        raise ClusterConfigError(
            "--min-workers requires --max-restarts, because workers are left out only at a "
            f"restart. Received: --min-workers {arguments.min_workers} only. Add, for example, "
            "--max-restarts 3."
        )
    if arguments.server_saves is not None and not (arguments.max_restarts and job.roles.ps):
        raise ClusterConfigError(
            "--server-saves requires --ps and --max-restarts, because the state of a parameter "
            "server is restored only at a restart. Received: --server-saves "
            f"{arguments.server_saves:g} without one of them. Add, for example, --max-restarts 3."
        )
    warn_of_options_after_program(arguments)
    for warning in ENVIRONMENTS["paddle"].warnings(os.environ):
        say(warning)
    if arguments.dry_run:
        if job.elsewhere:
            names = ", ".join(job.elsewhere)
            say(f"hosts are not queried: the ports and threads on {names} are examples")
        for command in job.commands(os.environ, is_dry=True):
            place = "" if command.host is None else f" on {command.host.login}"
            print(f"{command.task}{place}: cd {shlex.quote(os.getcwd())} && {shell_line(command)}")
        return 0
    page = metrics_page(arguments)
    with contextlib.nullcontext() if page is None else contextlib.closing(page):
        return _run(job, arguments, page)


def _check_elastic(arguments: argparse.Namespace, elastic: WorkerRange | None) -> None:
    """Checks that a job whose workers come and go has parameter servers."""
    if elastic is None:
        if arguments.join_port is not None:
            raise ClusterConfigError(
                "--join-port requires --workers MIN:MAX, because workers can join no other job. "
                f"Received: --join-port {arguments.join_port}. Pass, for example, --workers 2:4."
            )
        return
    if not arguments.ps:
        raise ClusterConfigError(
            "--workers MIN:MAX requires --ps, because only workers with parameter servers come and "
            f"go while a job runs. Received: --workers {elastic} without --ps. Add --ps 1 and a "
            "ParameterServerStrategy in mode 'async', 'half_async' or 'geo'; or, to restart with "
            f"fewer workers after a failure, pass --workers {elastic.most} --min-workers "
            f"{elastic.least} --max-restarts 3."
        )
    if arguments.min_workers is not None:
        raise ClusterConfigError(
            "--min-workers cannot be combined with --workers MIN:MAX, whose MIN it would repeat. "
            f"Received: --min-workers {arguments.min_workers} with --workers {elastic}. Omit it."
        )


def _places(job: JobSpec, arguments: argparse.Namespace, secret: str) -> PlaceServer | None:
    """Returns what gives the vacant places of an elastic job to workers; None for other jobs."""
    if job.elastic is None:
        return None
    hosts = job.place().values()
    here = _HERE if all(host.is_loopback for host in hosts) else ""
    return PlaceServer(job.elastic, here, arguments.join_port or 0, secret)


def describe_places(job: JobSpec, at: Address, secret: str, is_private: bool) -> str:
    """Returns a message that says how workers can join an elastic job.

    Args:
      job: the job.
      at: the address to join the job at.
      secret: the job's secret if the launcher has created it; "" if the user has set it.
      is_private: whether only the user reads the message, which then has the secret.
    """
    count = len(job.vacant)
    places = "1 more worker" if count == 1 else f"{count} more workers"
    line = f"tf-config join {at} {shlex.join(job.program)}"
    if secret and not is_private:
        return (
            f"{places} could join the job at {at}, but nobody knows its secret: set "
            f"{SECRET_VARIABLE} before the start (openssl rand -hex 16)"
        )
    return f"{places} can join the job: {f'{SECRET_VARIABLE}={secret} ' if secret else ''}{line}"


def _run(job: JobSpec, arguments: argparse.Namespace, page: MetricsPage | None) -> int:
    if page is not None:
        page.start()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # for characters that the encoding lacks
    console = Console(sys.stdout, job.roles.tasks[0], arguments.verbosity)
    if job.elsewhere and sys.stdout.isatty():
        names, shell = ", ".join(job.elsewhere), Path(job.ssh[0]).name
        console.begin(f"querying {names} over {shell} for free ports and processors")
    secret = secret_of(os.environ) or new_secret()
    places = _places(job, arguments, secret)
    # The same for all starts of an elastic job, because users have been told of it.
    environ = os.environ if places is None else {**os.environ, SECRET_VARIABLE: secret}
    restarts = Restarts(job, environ, arguments.min_workers, console.note)

    def plan(restart: int) -> list[Command]:
        commands = restarts.commands(restart)
        if places is not None:
            places.begin(job.attempt(commands))
            if not restart:
                console.note(_join_command(job, places, secret), 0)
        if not restart and shares_cpus(job):
            count = job.started.workers + job.roles.chief
            console.note(
                f"{count} workers share this machine's CPUs; one process with all cores, without "
                "tf-config, is often as fast",
                0,
            )
        return commands

    # A worker of an elastic job that fails again leaves it, as with --min-workers.
    least = arguments.min_workers if job.elastic is None else job.elastic.least + job.roles.chief
    with contextlib.nullcontext() if places is None else contextlib.closing(places):
        return launch.run(
            plan,
            console,
            arguments.log_dir,
            arguments.max_restarts,
            restarts.record_failure,
            page,
            restarts.find_returned,
            least,
            places,
        )


def _join_command(job: JobSpec, places: PlaceServer, secret: str) -> str:
    hosts = [host for host in job.place().values() if not host.is_loopback]
    # Workers join from the network of the job's other hosts, if it has any.
    hosts.sort(key=lambda host: host.is_here)
    at = Address(own_address(hosts[0].name) if hosts else _HERE, places.port)
    own = "" if secret_of(os.environ) else secret
    return describe_places(job, at, own, sys.stdout.isatty())


def shares_cpus(job: JobSpec) -> bool:
    """Returns whether several workers run a script on this machine alone, which has no GPUs."""
    is_python = is_script(job.program) or job.program[0] == MODULE
    is_alone = job.started.workers + job.roles.chief > 1 and not job.elsewhere
    return is_python and is_alone and gpus() == 0


def _remote_shell(arguments: argparse.Namespace) -> Sequence[str]:
    """Returns the command that connects to other hosts."""
    if arguments.ssh is None:
        return find_allocation(os.environ).shell if arguments.allocation else ("ssh",)
    text = arguments.ssh
    try:
        words = shlex.split(text)
    except ValueError:
        words = []
    if not words:
        raise ClusterConfigError(
            f"--ssh must be a command. Received: {quoted(text)}. For example: 'ssh -p 2222'."
        )
    return words
