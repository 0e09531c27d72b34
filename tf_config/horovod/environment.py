"""Horovod's environment variables, as `horovodrun` sets them, from a cluster and a task.

Checked against Horovod 0.28.1 (github.com/horovod/horovod, horovod/runner/gloo_run.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from tf_config.cluster import ClusterSpec, Task
from tf_config.network_interface import interface_of

RANK_VARIABLE = "HOROVOD_RANK"
CONTROLLER_VARIABLE = "HOROVOD_CONTROLLER"
OPERATIONS_VARIABLE = "HOROVOD_CPU_OPERATIONS"
INTERFACE_VARIABLE = "HOROVOD_GLOO_IFACE"
_GLOO = "gloo"
# Set by launchers that also start the processes as one MPI job.
MPI_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")


def place(cluster: ClusterSpec, task: Task) -> dict[str, str]:
    """Returns the variables that give a task its ranks among Horovod's processes.

    Horovod's processes are the chief and the workers, in the order of their ranks.

    >>> spec = ClusterSpec.from_dict({"worker": ["a:1", "a:2", "b:1"]})
    >>> variables = place(spec, Task("worker", 1))
    >>> variables["HOROVOD_RANK"], variables["HOROVOD_LOCAL_RANK"], variables["HOROVOD_CROSS_SIZE"]
    ('1', '1', '1')
    """
    tasks = cluster.training_tasks
    hosts = [cluster.addresses[other].host for other in tasks]
    rank = tasks.index(task)
    local = [other for other, host in enumerate(hosts) if host == hosts[rank]]
    local_rank = local.index(rank)
    peers = [host for host in dict.fromkeys(hosts) if hosts.count(host) > local_rank]
    return {
        RANK_VARIABLE: str(rank),
        "HOROVOD_SIZE": str(len(tasks)),
        "HOROVOD_LOCAL_RANK": str(local_rank),
        "HOROVOD_LOCAL_SIZE": str(len(local)),
        "HOROVOD_CROSS_RANK": str(peers.index(hosts[rank])),
        "HOROVOD_CROSS_SIZE": str(len(peers)),
        "HOROVOD_HOSTNAME": hosts[rank],
    }


def rendezvous_at(host: str, port: int) -> dict[str, str]:
    """Returns the variables with the address of Horovod's rendezvous."""
    return {"HOROVOD_GLOO_RENDEZVOUS_ADDR": host, "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port)}


def defaults(
    cluster: ClusterSpec, task: Task, environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Returns the variables that make Horovod's processes connect through Gloo.

    These are defaults: variables that are already set take precedence.

    Args:
      cluster: the tasks.
      task: the task that runs on this machine.
      environ: the task's environment. If MPI started exactly the tasks that train, the choice
        between MPI and Gloo is left to Horovod, which depends on its build. None for Gloo.
    """
    interface = interface_of(cluster.addresses[task].host)
    variables = {} if interface is None else {INTERFACE_VARIABLE: interface}
    all_train = len(cluster.addresses) == len(cluster.training_tasks)
    if environ is not None and all_train and any(name in environ for name in MPI_VARIABLES):
        return variables
    return {CONTROLLER_VARIABLE: _GLOO, OPERATIONS_VARIABLE: _GLOO, **variables}
