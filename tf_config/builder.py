"""From roles to a cluster: which tasks there are and where each listens."""

from __future__ import annotations

import random
import socket

from tf_config.address import Address
from tf_config.cluster import ClusterSpec, Task
from tf_config.errors import ClusterConfigError, shown

# Below the range that Linux, macOS and Windows hand out for outgoing connections: a port
# chosen here is not taken by a client of the same machine before the task listens on it.
_PORTS = range(10_000, 32_000)


def local_cluster(
    workers: int = 1, *, chief: bool = False, ps: int = 0, host: str = "127.0.0.1"
) -> ClusterSpec:
    """Returns a cluster on this machine, each task on a port that is free now.

    >>> [str(task) for task in local_cluster(workers=2, ps=1).addresses]
    ['worker 0', 'worker 1', 'ps 0']

    Args:
      workers: how many workers; at least 1, or 0 beside a chief.
      chief: whether there is a chief as well.
      ps: how many parameter servers.
      host: the name or address of this machine that the tasks listen on.

    Raises:
      ClusterConfigError: if a count is negative or nobody trains, or no port is free.
    """
    for name, count in (("workers", workers), ("ps", ps)):
        if count < 0:
            raise ClusterConfigError(
                f"A number of tasks is 0 or more. Received: {name}={shown(count)}. Ask for 1."
            )
    tasks = [Task("chief", 0)] * chief
    tasks += [Task("worker", index) for index in range(workers)]
    tasks += [Task("ps", index) for index in range(ps)]
    ports = free_ports(len(tasks), host)
    return ClusterSpec({task: Address(host, port) for task, port in zip(tasks, ports, strict=True)})


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Returns `count` different TCP ports that nobody listens on at `host` now.

    Raises:
      ClusterConfigError: if there are not that many.
    """
    ports: list[int] = []
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        if len(ports) == count:
            break
        if _is_free(host, port):
            ports.append(port)
    if len(ports) < count:
        raise ClusterConfigError(
            f"Each task needs a free port. Received: {count} tasks, {len(ports)} free ports on "
            f"{host}. Ask for fewer tasks, or name another host."
        )
    return ports


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
