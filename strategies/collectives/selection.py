"""Selection of the collectives of a job: shared memory, or a back end over the network.

Each worker makes the selection before it can communicate with the others, from TF_CONFIG, the
arguments and the software that is installed. Workers compare their selections at the rendezvous.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

# Imported so that their back ends register; neither imports Horovod itself.
from strategies.collectives import (  # noqa: F401
    Collectives,
    LocalCollectives,
    horovod,
    tensorflow,
)
from strategies.collectives.base import NetworkCollectives
from strategies.collectives.gpu import GpuCollectives
from strategies.collectives.hierarchical import HierarchicalCollectives
from strategies.collectives.registry import Backend, backend_of, backends, select_backend
from strategies.collectives.shared_memory import Host, SharedMemoryCollectives, exchange_over
from strategies.collectives.startup.rendezvous import meeting, wait_for_end
from strategies.compat.tensorflow import CommunicationOptions
from strategies.diagnostics.watchdog import watch, watch_seconds
from tf_config import ClusterConfigError, ClusterSpec, Task, TFConfig

VARIABLE = "KERAS_STRATEGIES_COMMUNICATION"
# The values that allow shared memory. With them, a back end over the network is selected as needed.
_SHARING = ("auto", "shared_memory")
_ALONE = "a single worker, which communicates with no other"
_Implementation = tf.distribute.experimental.CommunicationImplementation

# The job that this process has joined: a process has one job, but may create several strategies.
_job: tuple[ClusterSpec, Task] | None = None
# The network collectives that were connected last; a later strategy's workers can exchange over
# them what they need to share memory.
_network: NetworkCollectives | None = None
# The collectives over shared memory; None if no workers share memory, or if they have not tried
# yet. They try only once, because all workers have to try together.
_shared: Collectives | None = None
_has_tried = False


def connect_workers(
    config: TFConfig | None,
    communication: str,
    options: CommunicationOptions,
    timeout: float,
    device: str,
) -> tuple[Collectives, str]:
    """Waits for all workers; returns their collectives, and a description of them.

    Args:
      config: the cluster and this task; None is a single worker.
      communication: a value that `resolve_communication` returns.
      options: the options of TensorFlow's collectives.
      timeout: the number of seconds to wait for the other workers.
      device: this worker's first device.
    """
    if config is None:
        return LocalCollectives(), _ALONE
    if config.cluster.tasks("ps"):
        raise ClusterConfigError(
            "MultiWorkerMirroredStrategy cannot use parameter servers. Received: "
            f"{len(config.cluster.tasks('ps'))} in TF_CONFIG. Remove 'ps' from 'cluster', or use "
            "ParameterServerStrategy."
        )
    if config.task.type == "evaluator" or len(config.cluster.training_tasks) == 1:
        return LocalCollectives(), _ALONE
    _check_workers(config, options, device)
    _join(config)
    seconds = watch_seconds()  # before workers wait for each other, because it may raise

    def connect() -> NetworkCollectives:
        global _network
        backend, reason = _resolve_network(communication, device, options)
        if config.task == config.cluster.training_tasks[0]:
            workers = len(config.cluster.training_tasks)
            logging.debug("%d workers communicate by %s: %s.", workers, backend.name, reason)
        _network = backend.connect(config.cluster, config.task, timeout, device, options)
        return _network

    shared = None
    if communication in _SHARING:
        if _is_gpu(device):
            # First, because TensorFlow's collectives must start before TensorFlow is initialized.
            connect()
        is_wanted = _may_share(communication, device, options)
        shared = _share_memory(config, timeout, is_wanted, connect)
    if communication == "shared_memory" and not isinstance(shared, SharedMemoryCollectives):
        raise ClusterConfigError(
            "communication='shared_memory' requires CPU workers on one Linux host (x86-64), of the "
            "same user and in the same container, without communication_options for TensorFlow's "
            f"collectives. Received: {', '.join(map(str, config.cluster.training_tasks))} on "
            f"{device}, which cannot share memory. Omit the argument to use the best that is "
            "available."
        )
    if shared is None:
        collectives: Collectives = connect()
    else:
        collectives = GpuCollectives(connect(), shared) if _is_gpu(device) else shared
    way = _describe(collectives, communication, device, options)
    return watch(collectives, config.cluster, config.task, seconds), f"they communicate by {way}"


def _check_workers(config: TFConfig, options: CommunicationOptions, device: str) -> None:
    """Checks that the cluster lists all workers, and that they have the devices for the options."""
    tasks = config.cluster.training_tasks
    if [task.index for task in tasks if task.type == "worker"] != list(
        range(len(config.cluster.tasks("worker")))
    ):
        raise ClusterConfigError(
            "The cluster must list all workers, numbered from 0 without gaps. Received: "
            f"{', '.join(map(str, tasks))}. Add the missing workers."
        )
    if options.implementation == _Implementation.NCCL and not _is_gpu(device):
        raise ValueError(
            "NCCL cannot communicate between CPUs. Received: CommunicationImplementation.NCCL, and "
            f"replicas on {device}. Use AUTO or RING, or workers with GPUs."
        )


def _join(config: TFConfig) -> None:
    """Checks that all strategies of this process belong to one job.

    Raises:
      RuntimeError: if this strategy belongs to another job.
    """
    global _job
    if _job not in (None, (config.cluster, config.task)):
        raise RuntimeError(
            "A process cannot join more than one multi-worker job. Received: a second one in this "
            f"process, as {config.task}. Use one TF_CONFIG per process."
        )
    _job = config.cluster, config.task


def _describe(
    used: Collectives, communication: str, device: str, options: CommunicationOptions
) -> str:
    """Returns a description of how workers communicate, and why."""
    if isinstance(used, SharedMemoryCollectives):
        return "shared memory (all workers are on this host)"
    if isinstance(used, GpuCollectives):
        backend, _ = _resolve_network(communication, device, options)
        others = _describe(used.others, communication, device, options)
        return f"NCCL for sums of floats, through {backend.title}; for everything else {others}"
    backend, reason = _resolve_network(communication, device, options)
    between = f"{backend.title} ({reason})"
    if isinstance(used, HierarchicalCollectives):
        return f"shared memory on each host, and between hosts {between}"
    return between


def _resolve_network(
    communication: str, device: str, options: CommunicationOptions
) -> tuple[Backend, str]:
    """Returns the back end that is used over the network, and the reason for it."""
    if communication in _SHARING:
        return select_backend(device, options)
    return backend_of(communication), "as requested"


def _share_memory(
    config: TFConfig, timeout: float, is_wanted: bool, connect: Callable[[], NetworkCollectives]
) -> Collectives | None:
    """Returns collectives that use shared memory between workers on the same host.

    Returns None if a worker cannot or may not share memory, or if no two are on the same host.
    """
    global _shared, _has_tried
    if not _has_tried:
        host = _discover_host(config, timeout, is_wanted, connect)
        workers = len(config.cluster.training_tasks)
        _shared = None if host is None else _build_collectives(host, workers, connect)
        _has_tried = True
    return _shared if is_wanted else None


def _discover_host(
    config: TFConfig, timeout: float, is_wanted: bool, connect: Callable[[], NetworkCollectives]
) -> Host | None:
    """Returns this worker's host; None on all workers if one of them may not share memory.

    If all workers have the same host in TF_CONFIG, they exchange what is needed through a temporary
    store of the first worker, and need neither Horovod nor TensorFlow's server. Otherwise, and if
    such workers turn out not to share memory (containers with one address), they exchange it over
    the network collectives, which they need anyway.
    """
    tasks = config.cluster.training_tasks
    rank, names = tasks.index(config.task), [str(task) for task in tasks]
    if _network is None and len({config.cluster.addresses[task].host for task in tasks}) == 1:
        with meeting(config.cluster, config.task, timeout, "shared_memory") as exchange:
            host = Host.discover(rank, names, exchange, is_wanted)
        if host is not None and len(host.leaders) == 1:
            return host
        # The next rendezvous is at the same address, and must not find entries of this store.
        wait_for_end(config.cluster, config.task)
        if host is None:
            return None
    return Host.discover(rank, names, exchange_over(_network or connect()), is_wanted)


def _build_collectives(
    host: Host, workers: int, connect: Callable[[], NetworkCollectives]
) -> Collectives | None:
    hosts = len(host.leaders)
    if hosts == workers:
        return None
    if host.is_first:
        way = "all of them are on this host" if hosts == 1 else f"those of each of {hosts} hosts"
        logging.debug("%d workers share memory: %s.", workers, way)
    return (
        SharedMemoryCollectives(host, has_thread=False)
        if hosts == 1
        else HierarchicalCollectives(_network or connect(), host)
    )


def _may_share(communication: str, device: str, options: CommunicationOptions) -> bool:
    """Returns whether this worker's device and arguments allow it to share memory with others."""
    if options.timeout_seconds:  # only TensorFlow's collectives have a timeout
        return False
    if _is_gpu(device):  # floats are summed by NCCL, so AUTO and NCCL both allow it
        return communication == "auto" and options.implementation != _Implementation.RING
    return options.implementation == _Implementation.AUTO


def _is_gpu(device: str) -> bool:
    return "GPU" in device


def resolve_communication(
    communication: str | None, environ: Mapping[str, str] = os.environ
) -> str:
    """Returns the communication given by the argument, else by the environment, else "auto".

    >>> resolve_communication(None, {"KERAS_STRATEGIES_COMMUNICATION": "tensorflow"})
    'tensorflow'

    Raises:
      ValueError: if the value is unknown.
    """
    value = environ.get(VARIABLE, "auto") if communication is None else communication
    choices = (*_SHARING, *(backend.name for backend in backends()))
    if value not in choices:
        raise ValueError(
            f"communication must be one of {', '.join(map(repr, choices))}. Received: {value!r}. "
            f"Correct the argument communication or the environment variable {VARIABLE}."
        )
    return value


def with_implementation(
    cluster_resolver: Any, options: Any, communication: Any
) -> tuple[Any, Any, str | None]:
    """Returns a strategy's resolver, communication options and communication from its arguments.

    They may also be those of `tf.distribute.experimental.MultiWorkerMirroredStrategy`: a
    `CollectiveCommunication` and a resolver, in this order, or `communication=` with a
    `CollectiveCommunication`. It becomes the `implementation` of the communication options.

    Args:
      cluster_resolver: the first argument: a resolver, or a `CollectiveCommunication`.
      options: the second argument: `CommunicationOptions`, or a resolver if the first argument is a
        `CollectiveCommunication`.
      communication: a value of `resolve_communication`, or a `CollectiveCommunication`.

    Raises:
      ValueError: if two implementations are given.
    """
    implementation = cluster_resolver
    if isinstance(implementation, _Implementation):
        cluster_resolver = None
        if isinstance(options, tf.distribute.cluster_resolver.ClusterResolver):
            cluster_resolver, options = options, None
    elif isinstance(communication, _Implementation):
        implementation, communication = communication, None
    else:
        return cluster_resolver, options, communication
    options = validate_options(options)
    if options.implementation not in (_Implementation.AUTO, implementation):
        raise ValueError(
            "The implementation must be given only once. Received: "
            f"CollectiveCommunication.{implementation.name}, and communication_options with "
            f"implementation={options.implementation.name}. Omit one of them."
        )
    settings = options.bytes_per_pack, options.timeout_seconds, implementation
    return cluster_resolver, CommunicationOptions(*settings), communication


def validate_options(options: Any) -> CommunicationOptions:
    """Returns valid `tf.distribute.experimental.CommunicationOptions`; the default for None.

    Raises:
      ValueError: if `options` is of another type.
    """
    if options is None:
        return CommunicationOptions()
    if not isinstance(options, CommunicationOptions):
        raise ValueError(
            "communication_options must be a tf.distribute.experimental.CommunicationOptions. "
            f"Received: {options!r}. To control how gradients are reduced, pass "
            "options=strategies.ReductionOptions(...)."
        )
    return options
