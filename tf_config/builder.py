"""Assigns a host and a port to each task of a cluster."""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping, Sequence

from tf_config.address import Address
from tf_config.cluster import ClusterSpec, Task
from tf_config.errors import ClusterConfigError
from tf_config.hosts import Host, check_reachable
from tf_config.roles import Roles

# Below the range that Linux, macOS and Windows use for outgoing connections, so that no client on
# the same machine takes a chosen port before the task listens on it.
PORTS = range(10_000, 32_000)
_HERE = "127.0.0.1"


def local_cluster(
    workers: int = 1, *, chief: bool = False, ps: int = 0, host: str = _HERE
) -> ClusterSpec:
    """Returns a cluster on this machine, in which each task has a currently free port.

    >>> [str(task) for task in local_cluster(workers=2, ps=1).addresses]
    ['worker 0', 'worker 1', 'ps 0']

    Args:
      workers: the number of workers; at least 1, or 0 with a chief.
      chief: whether the cluster has a chief.
      ps: the number of parameter servers.
      host: the name or address of this machine that the tasks listen on.

    Raises:
      ClusterConfigError: if a count is negative, no task trains, or too few ports are free.
    """
    tasks = Roles(workers, ps, chief).tasks
    return cluster(dict.fromkeys(tasks, host), {host: free_ports(len(tasks), host)})


def place(
    roles: Roles, hosts: Sequence[Host] = (), ps_hosts: Sequence[Host] = ()
) -> dict[Task, Host]:
    """Returns the host of each task.

    The chief and the workers fill the slots of the hosts in order. Parameter servers are assigned
    round-robin to `ps_hosts`, or to `hosts` if `ps_hosts` is empty, and do not use slots. The
    evaluator runs on the host of the last slot.

    >>> placed = place(Roles(workers=3, ps=1), [Host("a", 2), Host("b", 2)])
    >>> [f"{task} on {host.name}" for task, host in placed.items()]
    ['worker 0 on a', 'worker 1 on a', 'worker 2 on b', 'ps 0 on a']

    Args:
      roles: the number of tasks of each type.
      hosts: the hosts of the training tasks; empty for this machine.
      ps_hosts: the hosts of the parameter servers.

    Raises:
      ClusterConfigError: if there are too few slots, if `ps_hosts` is given without parameter
        servers, or if loopback names are mixed with names of other hosts.
    """
    training = roles.workers + roles.chief
    hosts = hosts or [Host(_HERE, max(training, 1))]
    slots = [host for host in hosts for _ in range(host.slots)]
    if training > len(slots):
        raise ClusterConfigError(
            "Each worker, and the chief, must have its own slot on a host. Received: "
            f"{training} tasks for the {len(slots)} slots of {', '.join(h.name for h in hosts)}. "
            "Request fewer workers, or raise the number after a host's name: 'node1:4'."
        )
    if ps_hosts and not roles.ps:
        raise ClusterConfigError(
            "--ps-hosts requires parameter servers. Received: none. Add --ps, or omit the hosts."
        )
    servers = list(ps_hosts or hosts)
    if roles.ps:
        check_reachable([*hosts, *(host for host in servers if host not in hosts)])
    workers = slots[roles.chief :]
    where = {"chief": slots, "worker": workers, "ps": servers, "evaluator": slots[-1:]}
    return {task: where[task.type][task.index % len(where[task.type])] for task in roles.tasks}


def cluster(where: Mapping[Task, str], ports: Mapping[str, Sequence[int]]) -> ClusterSpec:
    """Returns a cluster in which each task has the next unused port of its host.

    Args:
      where: the host of each task. Evaluators are not part of the cluster and are skipped.
      ports: the ports of each host, at least one per task.

    Raises:
      ClusterConfigError: if there are too few ports.
    """
    left = {host: iter(numbers) for host, numbers in ports.items()}
    addresses = {}
    for task, host in where.items():
        if task.type == "evaluator":
            continue
        port = next(left[host], None)
        if port is None:
            raise ClusterConfigError(
                f"Each task must have its own port. Received: {len(ports[host])} ports for the "
                f"tasks on {host}. Use a lower --port."
            )
        addresses[task] = Address(host, port)
    return ClusterSpec(addresses)


def free_ports(count: int, host: str = _HERE) -> list[int]:
    """Returns `count` different TCP ports of `host` on which no process currently listens.

    Raises:
      ClusterConfigError: if there are too few free ports.
    """
    ports: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        if len(ports) == count:
            break
        if _is_free(host, port):
            ports.append(port)
    if len(ports) < count:
        raise ClusterConfigError(
            f"Each task must have a free port. Received: {count} tasks, {len(ports)} free ports on "
            f"{host}. Request fewer tasks, or use another host."
        )
    return ports


def ports_from(first: int, count: int) -> list[int]:
    """Returns up to `count` consecutive ports, beginning with `first`, whether free or not."""
    return list(range(first, min(first + count, 1 << 16)))


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
