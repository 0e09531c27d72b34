"""Selection of the collectives of a job: shared memory, Horovod, or TensorFlow's own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from strategies.collectives import Collectives, LocalCollectives
from strategies.collectives.base import NetworkCollectives
from strategies.collectives.hierarchical import HierarchicalCollectives
from strategies.collectives.shared_memory import Host, SharedMemoryCollectives, exchange_over
from strategies.collectives.startup.rendezvous import meeting, wait_for_end
from strategies.compat.tensorflow import CommunicationOptions
from strategies.diagnostics.watchdog import watch, watch_seconds
from tf_config import ClusterConfigError, ClusterSpec, Task, TFConfig

VARIABLE = "KERAS_STRATEGIES_COMMUNICATION"
_CHOICES = ("auto", "shared_memory", "horovod", "tensorflow")
_NAMES = {"horovod": "Horovod", "tensorflow": "TensorFlow's collectives"}
_ALONE = "nothing, for one worker"
_Implementation = tf.distribute.experimental.CommunicationImplementation

# The job that this process has joined: there is one, but it may have many strategies.
_job: tuple[ClusterSpec, Task] | None = None
_network: NetworkCollectives | None = None
# Collectives over shared memory where possible; None if workers share none or have not tried yet.
_shared: Collectives | None = None
_has_tried = False


def start(
    config: TFConfig | None,
    communication: str,
    options: CommunicationOptions,
    timeout: float,
    device: str,
) -> tuple[Collectives, str]:
    """Waits for all workers; returns their collectives and a description of the choice.

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
    tasks = config.cluster.training_tasks
    if [task.index for task in tasks if task.type == "worker"] != list(
        range(len(config.cluster.tasks("worker")))
    ):
        raise ClusterConfigError(
            "The cluster must list all workers, numbered from 0 without gaps. Received: "
            f"{', '.join(map(str, tasks))}. Add the missing ones."
        )
    if options.implementation == _Implementation.NCCL and "GPU" not in device:
        raise ValueError(
            "NCCL cannot communicate between CPUs. Received: CommunicationImplementation.NCCL, and "
            f"replicas on {device}. Use AUTO or RING, or workers with GPUs."
        )
    _join(config)
    seconds = watch_seconds()
    may_share = communication in ("auto", "shared_memory")
    is_wanted = "GPU" not in device and _leaves_open(options)

    def connect() -> NetworkCollectives:
        global _network
        name, reason = _resolve_network(communication, device, options)
        _network = _connect_network(config, name, reason, options, timeout, device)
        return _network

    shared = _share_memory(config, timeout, is_wanted, connect) if may_share else None
    if communication == "shared_memory" and not isinstance(shared, SharedMemoryCollectives):
        raise ClusterConfigError(
            "communication='shared_memory' requires CPU workers on one Linux host (x86-64), of the "
            "same user and in the same container, without communication_options for TensorFlow's "
            f"collectives. Received: {', '.join(map(str, tasks))} on {device}, which cannot share "
            "memory. Omit the argument to select what is possible."
        )
    collectives = connect() if shared is None else shared
    way = _describe(collectives, communication, device, options)
    return watch(collectives, config.cluster, config.task, seconds), way


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
    network, reason = _resolve_network(communication, device, options)
    between = f"{_NAMES[network]} ({reason})"
    if isinstance(used, HierarchicalCollectives):
        return f"shared memory on each host, and between hosts {between}"
    return between


def _resolve_network(
    communication: str, device: str, options: CommunicationOptions
) -> tuple[str, str]:
    """Returns the communication used over the network, and the reason for it."""
    return (
        _available(device, options)
        if communication in ("auto", "shared_memory")
        else (communication, "as asked for")
    )


def _connect_network(
    config: TFConfig,
    communication: str,
    reason: str,
    options: CommunicationOptions,
    timeout: float,
    device: str,
) -> NetworkCollectives:
    """Returns collectives over the network."""
    workers = config.cluster.training_tasks
    if config.task == workers[0]:
        logging.info("%d workers communicate by %s: %s.", len(workers), communication, reason)
    # Imported only when chosen, because the other one may not be usable here.
    if communication == "tensorflow":
        from strategies.collectives.tensorflow import TensorFlowCollectives

        return TensorFlowCollectives.start(config.cluster, config.task, timeout, device, options)
    from strategies.collectives import horovod

    _check_for_horovod(options, horovod.has_nccl())
    return horovod.HorovodCollectives.start(config.cluster, config.task, timeout)


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
    """Returns this worker's host; workers at one address meet without Horovod or TensorFlow."""
    tasks = config.cluster.training_tasks
    rank, names = tasks.index(config.task), [str(task) for task in tasks]
    if _network is None and len({config.cluster.addresses[task].host for task in tasks}) == 1:
        with meeting(config.cluster, config.task, timeout, "shared_memory") as exchange:
            host = Host.meet(rank, names, exchange, is_wanted)
        if host is not None and len(host.leaders) == 1:
            return host
        # The next meeting is at the same address.
        wait_for_end(config.cluster, config.task)
        if host is None:
            return None
    return Host.meet(rank, names, exchange_over(_network or connect()), is_wanted)


def _build_collectives(
    host: Host, workers: int, connect: Callable[[], NetworkCollectives]
) -> Collectives | None:
    hosts = len(host.leaders)
    if hosts == workers:
        return None
    if host.is_first:
        way = "all of them are on this host" if hosts == 1 else f"those of each of {hosts} hosts"
        logging.info("%d workers share memory: %s.", workers, way)
    return (
        SharedMemoryCollectives(host, has_thread=False)
        if hosts == 1
        else HierarchicalCollectives(_network or connect(), host)
    )


def _leaves_open(options: CommunicationOptions) -> bool:
    """Returns whether the options ask for nothing that only TensorFlow's collectives provide."""
    return options.implementation == _Implementation.AUTO and not options.timeout_seconds


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
    if value not in _CHOICES:
        raise ValueError(
            f"communication must be one of {', '.join(map(repr, _CHOICES))}. Received: {value!r}. "
            f"Correct the argument communication or the variable {VARIABLE}."
        )
    return value


def with_implementation(
    cluster_resolver: Any, options: Any, communication: Any
) -> tuple[Any, Any, str | None]:
    """Returns a strategy's resolver, communication options and communication from its arguments.

    `tf.distribute.experimental.MultiWorkerMirroredStrategy` takes a `CollectiveCommunication` and a
    resolver instead, in this order or as `communication=`. It means what it means as the
    `implementation` of `CommunicationOptions`.

    Args:
      cluster_resolver: the first argument: a resolver, or a `CollectiveCommunication`.
      options: the second one: `CommunicationOptions`, or a resolver behind a
        `CollectiveCommunication`.
      communication: a value of `resolve_communication`, or a `CollectiveCommunication`.

    Raises:
      ValueError: if two implementations are given.
    """
    given = cluster_resolver
    if isinstance(given, _Implementation):
        cluster_resolver = None
        if isinstance(options, tf.distribute.cluster_resolver.ClusterResolver):
            cluster_resolver, options = options, None
    elif isinstance(communication, _Implementation):
        given, communication = communication, None
    else:
        return cluster_resolver, options, communication
    options = validate_options(options)
    if options.implementation not in (_Implementation.AUTO, given):
        raise ValueError(
            "The implementation must be given once. Received: "
            f"CollectiveCommunication.{given.name}, and communication_options with "
            f"implementation={options.implementation.name}. Leave out one."
        )
    settings = options.bytes_per_pack, options.timeout_seconds, given
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


def _available(device: str, options: CommunicationOptions) -> tuple[str, str]:
    """Returns the communication that is available here, and the reason for it."""
    if options.timeout_seconds or options.implementation == _Implementation.RING:
        return "tensorflow", "as communication_options ask for"
    from strategies.collectives import horovod

    try:
        horovod.load()
    except ImportError as error:
        return "tensorflow", str(error.__cause__ or error)
    if "GPU" in device and not horovod.has_nccl():
        return "tensorflow", "the Horovod that is installed has no NCCL"
    return "horovod", "it is installed"


def _check_for_horovod(options: CommunicationOptions, has_nccl: bool) -> None:
    """Checks that Horovod supports the communication options.

    Raises:
      ValueError: if Horovod does not support them.
    """
    if options.timeout_seconds:
        raise ValueError(
            "timeout_seconds cannot be used with Horovod. Received: "
            f"timeout_seconds={options.timeout_seconds}. Use communication='tensorflow', or omit "
            "the timeout; HOROVOD_STALL_SHUTDOWN_TIME_SECONDS ends a job that hangs."
        )
    implementation = options.implementation
    if implementation == _Implementation.AUTO:
        return
    if implementation != _Implementation.NCCL or not has_nccl:
        raise ValueError(
            "Horovod cannot choose between Gloo, MPI and NCCL at run time. Received: "
            f"CommunicationImplementation.{implementation.name}. Use communication='tensorflow', "
            "or omit the implementation."
        )
