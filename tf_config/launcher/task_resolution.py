"""Determines the configuration and settings of a process at its start."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tf_config.address import Address
from tf_config.cluster import Task, TFConfig
from tf_config.environments import ENVIRONMENTS, RankOnly, Resolved
from tf_config.errors import ClusterConfigError
from tf_config.launcher.commands import cores, gpus
from tf_config.launcher.settings import (
    START_TIMEOUT_SECONDS,
    START_TIMEOUT_VARIABLE,
    LaunchOptions,
    LocalTasks,
    Setting,
    resolve_settings,
)
from tf_config.network_interface import check_interface
from tf_config.rendezvous import Participant, rendezvous
from tf_config.roles import Roles


@dataclass(frozen=True)
class RendezvousConfig:
    """How a process finds the others if its environment does not give their addresses.

    Attributes:
      url: the rendezvous; None means the one that the environment names, if any.
      timeout: the number of seconds to wait; None means the environment's value, or 300.
      interface: the network interface on which the others reach this process.
      note: receives messages during the wait.
    """

    url: str | None
    timeout: float | None
    interface: str | None
    note: Callable[[str], None]

    def run(
        self,
        url: str,
        participant: Participant,
        environ: Mapping[str, str],
        address: Address | None = None,
    ) -> TFConfig:
        """Returns the configuration of the process, once all processes have arrived."""
        timeout = self.timeout or start_timeout(environ)
        return rendezvous(url, participant, timeout, self.note, self.interface, address)


def resolve_task(
    resolved: Resolved,
    roles: Callable[[int], Roles],
    how: RendezvousConfig,
    environ: Mapping[str, str],
) -> TFConfig:
    """Returns the configuration of this process.

    Args:
      resolved: the result of reading the process's environment.
      roles: returns the roles of a number of processes, used if the environment names no roles.
      how: how the process finds the others.
      environ: the environment variables of the process.

    Raises:
      ClusterConfigError: if the others do not arrive in time, or the configuration does not fit.
    """
    config = resolved.config
    if isinstance(config, RankOnly):
        participant = Participant(config.roles or roles(config.size), config.rank, config.leader)
        url = how.url or config.rendezvous
        return how.run(url, participant, environ, config.address)
    environment = ENVIRONMENTS.get(resolved.origin)
    if environment is not None and not environment.names_roles:
        config = roles(len(config.cluster.training_tasks)).assign_to(config)
    if how.url is not None:
        return how.run(how.url, _participant(config), environ)
    return config if environment is None else environment.locate(config)


def settings(
    config: TFConfig, origin: str, request: LaunchOptions, environ: Mapping[str, str]
) -> list[Setting]:
    """Returns the settings of a task's process on its own host.

    The host's cores are divided among its tasks, unless the scheduler assigns cores to tasks.

    Args:
      config: the task's configuration.
      origin: the environment that the configuration was read from.
      request: the settings given as arguments.
      environ: the environment variables of the process.

    Raises:
      ClusterConfigError: if the interface does not exist or the GPUs do not suffice.
    """
    check_interface(request.interface)
    if config.task.type == "evaluator" and request.gpus:
        raise ClusterConfigError(
            "--gpus-per-worker cannot be used with an evaluator: it has no address, so it is not "
            "known which tasks share its host. Received: an evaluator. Omit the option, and set "
            "CUDA_VISIBLE_DEVICES for each task."
        )
    together = neighbours(config)
    environment = ENVIRONMENTS.get(origin)
    assigned = None if environment is None else environment.cores(environ)
    # A process that is bound to its own cores uses all of them; others share the machine's cores.
    share = max(min(cores(), (os.cpu_count() or 1) // len(together)), 1)
    return resolve_settings(
        request, environ, LocalTasks(config.task, together, assigned or share, gpus())
    )


def neighbours(config: TFConfig) -> tuple[Task, ...]:
    """Returns the tasks on the host of a task, including the task itself."""
    if config.address is None:
        return (config.task,)
    addresses = config.cluster.addresses
    return tuple(task for task in addresses if addresses[task].host == config.address.host)


def start_timeout(environ: Mapping[str, str]) -> float:
    """Returns the environment's number of seconds to wait for the others; 300 by default.

    Raises:
      ClusterConfigError: if the value is not a number of seconds above 0.
    """
    text = environ.get(START_TIMEOUT_VARIABLE, f"{START_TIMEOUT_SECONDS:g}")
    try:
        seconds = float(text)
    except ValueError:
        seconds = float("nan")
    if not 0 < seconds < float("inf"):
        raise ClusterConfigError(
            f"{START_TIMEOUT_VARIABLE} must be a number of seconds above 0. Received: {text!r}. "
            "Correct the variable, or unset it."
        )
    return seconds


def _participant(config: TFConfig) -> Participant:
    """Returns the participant for a rendezvous that replaces the addresses of a task's cluster."""
    tasks = list(config.cluster.addresses)
    counts = {name: len(config.cluster.tasks(name)) for name in ("chief", "worker", "ps")}
    evaluator = config.task.type == "evaluator"
    roles = Roles(counts["worker"], counts["ps"], bool(counts["chief"]), evaluator)
    if [*tasks, *([config.task] if evaluator else [])] != list(roles.tasks):
        raise ClusterConfigError(
            "A rendezvous requires tasks numbered 0, 1, 2, ... Received: "
            f"{', '.join(map(str, tasks))}. Omit --rendezvous, or renumber them."
        )
    return Participant(roles, roles.tasks.index(config.task))
