"""From what a process knows at its start to its place in the cluster, and what it is told."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tf_config.address import Address
from tf_config.cluster import Task, TFConfig
from tf_config.commands import cores, gpus
from tf_config.environments import ENVIRONMENTS, Resolved, Unplaced
from tf_config.errors import ClusterConfigError
from tf_config.interface import check_interface
from tf_config.rendezvous import Seat, meet
from tf_config.roles import Roles
from tf_config.settings import (
    START_TIMEOUT_SECONDS,
    START_TIMEOUT_VARIABLE,
    Neighbours,
    Request,
    Setting,
    settle,
)


@dataclass(frozen=True)
class Meeting:
    """How a process finds the others where nobody tells it their addresses.

    Attributes:
      url: the rendezvous; None for what the environment names, if it names one.
      timeout: seconds to wait; None for what the environment says, or 300.
      interface: the network interface that the others reach this process by.
      note: takes what there is to say while it waits.
    """

    url: str | None
    timeout: float | None
    interface: str | None
    note: Callable[[str], None]

    def hold(
        self, url: str, seat: Seat, environ: Mapping[str, str], address: Address | None = None
    ) -> TFConfig:
        """Returns the process's configuration, once all have come."""
        timeout = self.timeout or start_timeout(environ)
        return meet(url, seat, timeout, self.note, self.interface, address)


def join(
    resolved: Resolved,
    roles: Callable[[int], Roles],
    meeting: Meeting,
    environ: Mapping[str, str],
) -> TFConfig:
    """Returns the configuration of this process.

    Args:
      resolved: what its environment says.
      roles: makes the roles of so many processes, where the environment names none.
      meeting: how it finds the others.
      environ: its variables.

    Raises:
      ClusterConfigError: if the others are not there in time, or something does not fit.
    """
    config = resolved.config
    if isinstance(config, Unplaced):
        seat = Seat(config.roles or roles(config.size), config.rank, config.leader)
        url = meeting.url or config.rendezvous
        return meeting.hold(url, seat, environ, config.address)
    environment = ENVIRONMENTS.get(resolved.origin)
    if environment is not None and not environment.names_roles:
        config = roles(len(config.cluster.training_tasks)).given_to(config)
    if meeting.url is not None:
        return meeting.hold(meeting.url, _seat(config), environ)
    return config if environment is None else environment.locate(config)


def settings(
    config: TFConfig, origin: str, request: Request, environ: Mapping[str, str]
) -> list[Setting]:
    """Returns what the process of a task is told, on its own host.

    Threads are shared out among the tasks of this host, unless the scheduler says how many
    cores each has.

    Args:
      config: the task's configuration.
      origin: the environment it was read from.
      request: what the arguments say.
      environ: the process's variables.

    Raises:
      ClusterConfigError: if there is no such interface, or not enough GPUs.
    """
    check_interface(request.interface)
    if config.task.type == "evaluator" and request.gpus:
        raise ClusterConfigError(
            "--gpus-per-worker deals out the GPUs of a host among its tasks. Received: an "
            "evaluator, which has no address, so nobody knows whose host it shares. Leave the "
            "option out, and set CUDA_VISIBLE_DEVICES for each task."
        )
    together = neighbours(config)
    environment = ENVIRONMENTS.get(origin)
    given = None if environment is None else environment.cores(environ)
    # A process that is bound to its own cores has them all; the others share the machine's.
    share = max(min(cores(), (os.cpu_count() or 1) // len(together)), 1)
    return settle(request, environ, Neighbours(config.task, together, given or share, gpus()))


def neighbours(config: TFConfig) -> tuple[Task, ...]:
    """Returns the tasks on the host of a task, itself among them."""
    if config.address is None:
        return (config.task,)
    addresses = config.cluster.addresses
    return tuple(task for task in addresses if addresses[task].host == config.address.host)


def start_timeout(environ: Mapping[str, str]) -> float:
    """Returns how many seconds the environment says to wait for the others, or 300.

    Raises:
      ClusterConfigError: if that is no time.
    """
    text = environ.get(START_TIMEOUT_VARIABLE, f"{START_TIMEOUT_SECONDS:g}")
    try:
        seconds = float(text)
    except ValueError:
        seconds = float("nan")
    if not 0 < seconds < float("inf"):
        raise ClusterConfigError(
            f"A time to wait is a number of seconds above 0. Received: {text!r} in "
            f"{START_TIMEOUT_VARIABLE}. Correct the variable, or unset it."
        )
    return seconds


def _seat(config: TFConfig) -> Seat:
    """Returns the number of a task whose addresses are to be found anew."""
    tasks = list(config.cluster.addresses)
    counts = {name: len(config.cluster.tasks(name)) for name in ("chief", "worker", "ps")}
    evaluator = config.task.type == "evaluator"
    roles = Roles(counts["worker"], counts["ps"], bool(counts["chief"]), evaluator)
    if [*tasks, *([config.task] if evaluator else [])] != list(roles.tasks):
        raise ClusterConfigError(
            "A rendezvous is for tasks numbered 0, 1, 2, ... Received: "
            f"{', '.join(map(str, tasks))}. Leave --rendezvous out, or number them anew."
        )
    return Seat(roles, roles.tasks.index(config.task))
