"""Slurm: the tasks of a job step under srun, or of the job in a batch script.

Variables: slurm.schedmd.com/srun.html and sbatch.html, "OUTPUT ENVIRONMENT VARIABLES".
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tf_config.address import Address
from tf_config.cluster import ClusterSpec, Task, TFConfig
from tf_config.environments.environment import Variables
from tf_config.environments.node_list import parse_node_list, parse_tasks_per_node
from tf_config.errors import ClusterConfigError, quoted

# The variables of a step take precedence over those of the job that contains it.
_RANK = ("SLURM_PROCID",)
_NODES = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
_TASKS_PER_NODE = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
_JOB = ("SLURM_JOB_ID",)
_STEP = ("SLURM_STEP_ID", "SLURM_STEPID")

# Each job has its own block of ports, so that two jobs on one node do not collide: jobs of at most
# _PORTS_A_BLOCK tasks whose numbers differ by less than _PORT_BLOCKS never share a port, and
# neither do successive steps of a job. A port is used by one task only, even on different nodes,
# because several nodes may be one machine. The range is below that of outgoing connections.
_FIRST_PORT, _PORTS_A_BLOCK, _PORT_BLOCKS = 11_000, 64, 160


def read(variables: Variables) -> TFConfig:
    """Returns a cluster in which all tasks are workers, in the order of their ranks."""
    nodes = parse_node_list(variables.text(*_NODES))
    counts = parse_tasks_per_node(variables.text(*_TASKS_PER_NODE))
    if len(counts) != len(nodes):
        raise ClusterConfigError(
            "The node list and the numbers of tasks must have the same length. Received: "
            f"{len(nodes)} nodes ({quoted(','.join(nodes))}), {len(counts)} numbers {counts}. "
            "Request the same in sbatch and srun, and do not change the variables."
        )
    placed = _place(counts, variables)
    rank = variables.number(*_RANK)
    node = variables.find("SLURM_NODEID")
    if rank < len(placed) and node is not None and node != str(placed[rank]):
        raise ClusterConfigError(
            f"Tasks must be placed on nodes according to SLURM_DISTRIBUTION. Received: rank {rank} "
            f"on node {quoted(node)}, where node {placed[rank]} was expected. Start the step with "
            "--distribution=block or cyclic."
        )
    step = variables.find(*_STEP) or "0"
    odd = int(step[-1]) % 2 if step.isascii() and step.isdigit() else 0
    block = 2 * (variables.number(*_JOB) % _PORT_BLOCKS) + odd
    first = _FIRST_PORT + block * _PORTS_A_BLOCK
    addresses = {
        Task("worker", index): Address(nodes[node], first + index)
        for index, node in enumerate(placed)
    }
    return TFConfig(ClusterSpec(addresses), Task("worker", rank))


def locate(config: TFConfig) -> TFConfig:
    """Returns `config` with addresses in place of host names that cannot be resolved.

    Slurm's node names need not be host names, but Slurm knows the addresses of the nodes.
    """
    unknown = sorted({a.host for a in config.cluster.addresses.values() if not _is_known(a.host)})
    if not unknown:
        return config
    command = ["scontrol", "show", "node", "--oneliner", ",".join(unknown)]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return config  # a task that waits for such a host will report it
    known = node_addresses(result.stdout)
    addresses = {
        task: Address(known.get(address.host, address.host), address.port)
        for task, address in config.cluster.addresses.items()
    }
    return replace(config, cluster=ClusterSpec(addresses))


def cores(environ: Mapping[str, str]) -> int | None:
    """Returns the number of cores requested for each task; None if none was requested.

    >>> cores({"SLURM_CPUS_PER_TASK": "4"})
    4
    """
    text = environ.get("SLURM_CPUS_PER_TASK", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 and int(text) else None


def extra_warnings(environ: Mapping[str, str]) -> list[str]:
    """Returns a warning if a step with one task is part of a job on several nodes.

    >>> environ = {"SLURM_STEP_NUM_TASKS": "1", "SLURM_JOB_NUM_NODES": "2"}
    >>> extra_warnings(environ)  # doctest: +ELLIPSIS
    ['Each srun starts a separate training job...
    """
    nodes = environ.get("SLURM_JOB_NUM_NODES", "1")
    if environ.get("SLURM_STEP_NUM_TASKS") != "1" or nodes in ("", "1"):
        return []
    return [
        f"Each srun starts a separate training job; this one has 1 task, and the allocation has "
        f"{nodes} nodes. To train together, start all tasks with one srun"
    ]


def node_addresses(text: str) -> dict[str, str]:
    """Returns the address of each node in the output of `scontrol show node --oneliner`.

    >>> node_addresses("NodeName=n9 Arch=x86_64 NodeAddr=10.0.0.9 NodeHostName=rack1")
    {'n9': '10.0.0.9'}
    """
    addresses = {}
    for line in text.splitlines():
        fields = dict(field.split("=", 1) for field in line.split() if "=" in field)
        if "NodeName" in fields and "NodeAddr" in fields:
            addresses[fields["NodeName"]] = fields["NodeAddr"]
    return addresses


def _is_known(host: str) -> bool:
    try:
        return bool(socket.getaddrinfo(host, None))
    except OSError:
        return False


def _place(counts: Sequence[int], variables: Variables) -> list[int]:
    """Returns the node of each rank, as an index into the node list.

    Slurm assigns ranks to the nodes in turn, `size` at a time, until each node has all of its
    tasks: all ranks of a node at a time with block, one with cyclic.
    """
    distribution = (variables.find("SLURM_DISTRIBUTION") or "block").split(":")[0].split(",")[0]
    if distribution.startswith("plane"):
        size = variables.number("SLURM_DIST_PLANESIZE")
    elif distribution in ("block", "cyclic", "*", "nopack", "pack"):
        size = 1 if distribution == "cyclic" else max(counts)
    else:
        raise ClusterConfigError(
            "The distribution of tasks must be block, cyclic or plane. Received: "
            f"SLURM_DISTRIBUTION={quoted(distribution)}. Start the step with --distribution=block "
            "or cyclic."
        )
    left, placed = list(counts), []
    while any(left):
        for node, count in enumerate(left):
            placed += [node] * min(max(size, 1), count)
            left[node] -= min(max(size, 1), count)
    return placed
