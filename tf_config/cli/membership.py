"""Arguments of the commands that determine their process's task in a cluster."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path

from tf_config.cli.arguments import count, offer_paths, offer_words, say, text_of
from tf_config.cluster import VARIABLE, Task, TFConfig
from tf_config.environments import ENVIRONMENTS, Resolved, resolve
from tf_config.errors import ClusterConfigError
from tf_config.launcher.task_resolution import RendezvousConfig, resolve_task
from tf_config.rendezvous import Participant, check_url
from tf_config.roles import Roles

_LONGEST = 100  # of a command line in a message


def add_source(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments for the source of TF_CONFIG: a file or an environment."""
    file = parser.add_argument(
        "--file", type=Path, help=f"read {VARIABLE} from this file; - for standard input"
    )
    offer_paths(file, "file")
    add_environment(parser)


def add_environment(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments for the environment, the roles of its tasks, and their rendezvous."""
    origin = parser.add_argument(
        "--from",
        dest="origin",
        metavar="ENVIRONMENT",
        help=f"environment to read: {', '.join(ENVIRONMENTS)} (default: the first one present)",
    )
    offer_words(origin, ENVIRONMENTS)
    parser.add_argument(
        "--ps", type=count, metavar="N", help="make the last N tasks parameter servers"
    )
    parser.add_argument("--chief", action="store_true", help="make the first task the chief")
    parser.add_argument("--evaluator", action="store_true", help="make the last task an evaluator")
    parser.add_argument(
        "--rendezvous",
        metavar="URL",
        help="where the tasks meet: file:///shared/directory or tcp://first-host:port",
    )
    parser.add_argument(
        "--task", metavar="TYPE:INDEX", help="this process's task, with --rendezvous and --workers"
    )
    parser.add_argument("--workers", type=count, metavar="N", help="number of workers, with --task")


def configuration(arguments: argparse.Namespace) -> tuple[TFConfig, str]:
    """Returns this process's configuration and its origin.

    Waits for the other processes if the environment does not give their addresses.

    Raises:
      ClusterConfigError: if there is no configuration, if it is invalid, or if the others do not
        arrive in time.
    """
    if arguments.rendezvous is not None:
        check_url(arguments.rendezvous)  # before anything that may be missing is reported
    timeout = getattr(arguments, "start_timeout", None)
    interface = getattr(arguments, "interface", None)
    quiet = getattr(arguments, "verbosity", 0) < 0
    note = (lambda text: None) if quiet else say
    how = RendezvousConfig(arguments.rendezvous, timeout, interface, note)
    if arguments.task is not None:
        return _resolve_config(arguments, how), "arguments"
    if arguments.workers is not None:
        raise ClusterConfigError(
            "--workers requires --task; otherwise the environment determines the number of "
            "workers. Received: --workers only. Omit it, or add --task."
        )
    resolved = read(arguments)

    environment = ENVIRONMENTS.get(resolved.origin)
    for warning in [] if environment is None else environment.warnings(os.environ):
        say(warning)

    def roles(total: int) -> Roles:
        return Roles.of(total, arguments.ps or 0, arguments.chief, arguments.evaluator)

    return resolve_task(resolved, roles, how, os.environ), resolved.origin


def read(arguments: argparse.Namespace) -> Resolved:
    """Returns the configuration in the environment or the file.

    Raises:
      ClusterConfigError: if there is no configuration, or if it is invalid.
    """
    path = getattr(arguments, "file", None)
    if path is not None:
        if arguments.origin is not None:
            raise ClusterConfigError(
                "--file and --from cannot be combined. Received: both. Omit one of them."
            )
        _check_no_roles(arguments, "--file")
        return Resolved(TFConfig.from_json(text_of(path, "--file")), str(path), {})
    resolved = resolve(os.environ, arguments.origin)
    if resolved is None:
        raise ClusterConfigError(
            f"{VARIABLE} or a scheduler's variables must be set. Received: none of "
            f"{', '.join(ENVIRONMENTS)}. {_remedy(arguments)}"
        )
    if ENVIRONMENTS[resolved.origin].names_roles:
        _check_no_roles(arguments, f"the environment '{resolved.origin}'")
    return resolved


def _resolve_config(arguments: argparse.Namespace, how: RendezvousConfig) -> TFConfig:
    """Returns the configuration of the task that the arguments name, after a rendezvous."""
    if arguments.rendezvous is None or arguments.workers is None:
        raise ClusterConfigError(
            "--task requires --workers and --rendezvous. Received: --task without one of them. For "
            "example: --task worker:1 --workers 4 --rendezvous file:///shared/job-7."
        )
    roles = Roles(arguments.workers, arguments.ps or 0, arguments.chief, arguments.evaluator)
    task = Task.parse(arguments.task)
    if task not in roles.tasks:
        raise ClusterConfigError(
            f"--task must name one of the requested tasks. Received: {task}, of "
            f"{', '.join(map(str, roles.tasks))}. Correct --task, or request more tasks."
        )
    return how.run(arguments.rendezvous, Participant(roles, roles.tasks.index(task)), os.environ)


def _remedy(arguments: argparse.Namespace) -> str:
    """Returns the remedy for a process to which nothing assigns a task in a cluster."""
    if arguments.rendezvous is not None:
        return (
            "Without a scheduler, the process must be given its task: add for example --task "
            "worker:0 --workers 2."
        )
    program = getattr(arguments, "program", "train.py")
    words = [program, *getattr(arguments, "arguments", [])]
    line = shlex.join(words)
    if not line.isprintable() or len(line) > _LONGEST:
        line = "train.py"
    return (
        f"To start workers on this machine, use 'tf-config run --workers 2 {line}'; otherwise "
        f"start this under a scheduler, or set {VARIABLE} (see 'tf-config build --help')."
    )


def _check_no_roles(arguments: argparse.Namespace, who: str) -> None:
    """Checks that no option gives roles that are already known."""
    options = {
        f"--ps {arguments.ps}": arguments.ps is not None,
        "--chief": arguments.chief,
        "--evaluator": arguments.evaluator,
    }
    received = " ".join(option for option, is_set in options.items() if is_set)
    if received:
        raise ClusterConfigError(
            f"--ps, --chief and --evaluator cannot be combined with {who}, which already assigns "
            f"the roles. Received: {received}. Omit it, or choose another environment with --from."
        )
