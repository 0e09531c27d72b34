"""Collectives over Horovod, started from TF_CONFIG alone; the only module that imports Horovod.

Neither horovodrun nor mpirun nor ssh is needed: the cluster gives each process its rank, and the
first worker serves Horovod's rendezvous at its own address (Horovod's class `RendezvousHTTPServer`,
github.com/horovod/horovod, horovod/runner/http/http_server.py). Horovod's operations run on Gloo
between CPUs, and on NCCL between GPUs if Horovod was built with it. Tested with Horovod 0.28.1.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
import socketserver
from collections.abc import Callable, Sequence
from importlib import metadata
from ipaddress import ip_address
from types import ModuleType
from typing import Any

import tensorflow as tf

from strategies.collectives.base import RowCounts, StreamKeeper
from strategies.collectives.dtypes import all_reduce_by_dtype, check_is_numeric
from strategies.collectives.registry import Backend, register
from strategies.collectives.startup.rendezvous import serve, wait_for_all
from strategies.compat.tensorflow import (
    CommunicationOptions,
    ResourceVariable,
    place_in_function,
)
from strategies.utils.devices import HOST
from tf_config import Address, ClusterConfigError, ClusterSpec, Task
from tf_config.horovod.environment import place, rendezvous_at

_Implementation = tf.distribute.experimental.CommunicationImplementation
_FIXED_BUILD_TAG = "gloo.iface"
# Values that are only moved keep their bits: a dtype that Horovod does not support is sent as a
# dtype of the same size, or as two values of half the size.
_CARRIERS = {
    tf.bfloat16: tf.uint16,
    tf.uint32: tf.int32,
    tf.uint64: tf.int64,
    tf.complex64: tf.int64,
    tf.complex128: tf.int64,
}

# All workers create their streams in the same order, so a stream has the same number everywhere.
_stream_numbers = itertools.count(1)
# Horovod's process sets, by their ranks: it accepts each set only once.
_process_sets: dict[tuple[int, ...], Any] = {}
# The job of this process: Horovod starts once per process, but there may be many strategies.
_started: tuple[ClusterSpec, Task, HorovodCollectives] | None = None


class HorovodCollectives(StreamKeeper):
    """Collectives among all workers of a cluster over Horovod; created by `start`.

    Args:
      horovod: Horovod's module for TensorFlow.
      process_set: the process set of the workers; None is all workers.
      stream: the stream's number; operations of different streams may run at the same time.
    """

    def __init__(self, horovod: ModuleType, process_set: Any = None, stream: int = 0):
        super().__init__()
        self._horovod = horovod
        self._stream = stream
        self._process_set = horovod.global_process_set if process_set is None else process_set
        self.rank: int = self._process_set.rank()
        self.size: int = self._process_set.size()
        # A graph makes equal names unique by counting them. If a subset used the same names as all
        # workers, its members would count further than the others, and would wait for names that
        # the others never use.
        self._name = f"keras_strategies.set_{self._process_set.process_set_id}.stream_{stream}"
        with tf.init_scope(), tf.device(HOST):
            # The first value of the last result, if it has values; see `_run_named`.
            self._finished = ResourceVariable(
                [0], dtype=tf.int64, trainable=False, shape=tf.TensorShape([None])
            )

    @classmethod
    def start(cls, cluster: ClusterSpec, task: Task, timeout: float) -> HorovodCollectives:
        """Waits for all workers and starts Horovod; called again, returns the same collectives.

        Args:
          cluster: the workers, in the order of their ranks.
          task: the task of this process.
          timeout: the number of seconds to wait for the other workers.

        Raises:
          ImportError: if Horovod is not installed or not built for this TensorFlow.
          TimeoutError: if a worker does not arrive in time; the message names it.
          ClusterConfigError: if this worker's port is taken, or the workers' clusters differ.
          RuntimeError: if Horovod was already started for another job.
        """
        global _started
        horovod = load()
        if _started is not None and _started[:2] == (cluster, task):
            return _started[2]
        if horovod.is_initialized():
            raise RuntimeError(
                "A process cannot join more than one multi-worker job. Received: Horovod, which "
                "was already initialized for another one. Use one TF_CONFIG per process, and do "
                "not call horovod.init()."
            )
        if task == cluster.training_tasks[0]:
            _serve(cluster.addresses[task], task)
        wait_for_all(cluster, task, timeout)
        _check_hostname(cluster, task, metadata.version("horovod"))
        os.environ.update(_environment(cluster, task))
        horovod.init()
        _started = (cluster, task, cls(horovod))
        return _started[2]

    def _make_stream(self) -> HorovodCollectives:
        return HorovodCollectives(self._horovod, self._process_set, next(_stream_numbers))

    def subset(self, ranks: Sequence[int]) -> HorovodCollectives | None:
        """Returns collectives among some of the workers; see `NetworkCollectives`."""
        key = tuple(ranks)
        if key not in _process_sets:
            _process_sets[key] = self._horovod.add_process_set(list(ranks))
        joined = _process_sets[key]
        if not joined.included():
            return None
        return HorovodCollectives(self._horovod, joined, self._stream)

    def all_reduce(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the sums over all workers; see `Collectives`."""

        def all_reduce(group: list[tf.Tensor], dtype: tf.DType) -> list[tf.Tensor]:
            operation, op = self._horovod.grouped_allreduce, self._horovod.Sum
            return self._run_named(f"all_reduce_{dtype.name}", operation, group, op=op)

        return all_reduce_by_dtype(tensors, all_reduce)

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the workers' tensors concatenated along axis 0; see `Collectives`."""
        return self._transport("all_gather", self._horovod.allgather, tensor)

    def broadcast(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the first worker's tensor; see `Collectives`."""
        return self._transport("broadcast", self._horovod.broadcast, tensor, root_rank=0)

    def all_to_all(
        self, tensor: tf.Tensor, counts: tf.Tensor, known: RowCounts | None = None
    ) -> tuple[tf.Tensor, RowCounts]:
        """Returns the rows that the workers sent to this one; see `Collectives`."""
        check_is_numeric(tensor.dtype)
        with tf.device(HOST):
            splits = tf.cast(counts, tf.int32)
        carrier = _CARRIERS.get(tensor.dtype, tensor.dtype)
        sent = tensor if carrier == tensor.dtype else tf.bitcast(tensor, carrier)
        received, splits = self._run_named("all_to_all", self._horovod.alltoall, sent, splits)
        received = received if carrier == tensor.dtype else tf.bitcast(received, tensor.dtype)
        counts = tf.cast(splits, counts.dtype)
        rows = tf.ensure_shape(received, [None, *tensor.shape[1:]])
        return rows, RowCounts(counts, tf.constant(0))

    def _transport(
        self, kind: str, operation: Callable[..., tf.Tensor], tensor: tf.Tensor, **options: Any
    ) -> tf.Tensor:
        """Runs an operation that only moves data, bit-cast to a dtype that Horovod supports."""
        check_is_numeric(tensor.dtype)
        carrier = _CARRIERS.get(tensor.dtype)
        if carrier is None:
            return self._run_named(kind, operation, tensor, **options)
        moved = self._run_named(kind, operation, tf.bitcast(tensor, carrier), **options)
        return tf.bitcast(moved, tensor.dtype)

    def _run_named(
        self, kind: str, operation: Callable[..., Any], *arguments: Any, **options: Any
    ) -> Any:
        """Runs an operation under a name that is the same on all workers.

        Horovod matches the operations of different workers by their names, and a name is in use
        until its operation has ended. The names of TensorFlow's nodes are not suitable: they depend
        on the names of layers, which differ if a worker created other models before, and in
        branches on the number of all nodes, which differs if a worker's graph has more of them. So
        the name consists of the process set, the stream, the function, the nesting depth of its
        branches and loops, and a number within these.

        All operations write to one variable, so branches, function calls and iterations of loops
        run one after the other, and their operations may have the same names. The value that they
        write is taken from the result, because TensorFlow would prune an operation whose result is
        not used, and if the workers' functions differ, not on all workers.
        """
        options["process_set"] = self._process_set
        if tf.executing_eagerly():
            return operation(*arguments, name=kind, **options)
        function, depth = place_in_function(tf.compat.v1.get_default_graph())
        name = re.sub(r"[^A-Za-z0-9_.]", "_", f"{self._name}.{function}.{depth}.{kind}")
        # In a name scope of its own, so that nothing else counts towards the number.
        with tf.name_scope(f"{self._name}/"):
            result = operation(*arguments, name=name, ignore_name_scope=True, **options)
            results = tf.nest.flatten(result)
            with tf.control_dependencies(results):
                first = tf.cast(tf.reshape(results[0], [-1])[:1], tf.int64)
                self._finished.assign(first, read_value=False)
        return result


def load() -> ModuleType:
    """Returns Horovod's module for TensorFlow.

    Raises:
      ImportError: if Horovod is not installed, or not built for this TensorFlow.
    """
    try:
        import horovod.tensorflow as horovod
    except Exception as error:  # Horovod raises unrelated types of its own for a wrong build
        raise ImportError(
            "communication='horovod' requires Horovod 0.28.1, built for TensorFlow "
            f"{tf.__version__}. Received: {type(error).__name__}: {error}. 'tf-config "
            "install-horovod' builds it in two to four minutes (see BUILD.md); "
            "communication='tensorflow' requires no other software."
        ) from error
    return horovod


def has_nccl() -> bool:
    """Returns whether Horovod was built with NCCL.

    Raises:
      ImportError: if Horovod cannot be used at all.
    """
    return bool(load().nccl_built())


def _horovod_obstacle(device: str, options: CommunicationOptions) -> str:
    """Returns why "auto" cannot select Horovod, or ""; see `Backend.find_obstacle`."""
    if options.timeout_seconds or options.implementation == _Implementation.RING:
        return "as requested by communication_options"
    try:
        load()
    except ImportError as error:
        return str(error.__cause__ or error)
    if "GPU" in device and not has_nccl():
        return "the installed Horovod was built without NCCL"
    return ""


def _connect(
    cluster: ClusterSpec, task: Task, timeout: float, device: str, options: CommunicationOptions
) -> HorovodCollectives:
    del device
    _check_options(options, has_nccl())
    return HorovodCollectives.start(cluster, task, timeout)


def _check_options(options: CommunicationOptions, has_nccl: bool) -> None:
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


register(Backend("horovod", "Horovod", 1, _horovod_obstacle, _connect))


def _serve(address: Address, task: Task) -> socketserver.BaseServer:
    """Serves Horovod's rendezvous at `address` until this process ends."""
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    return serve(RendezvousHTTPServer, address, task, RendezvousHandler, 0)


def _environment(cluster: ClusterSpec, task: Task) -> dict[str, str]:
    """Returns the environment variables for Horovod, without overwriting options already set.

    >>> spec = ClusterSpec.from_dict({"worker": ["127.0.0.1:2222", "127.0.0.1:2223"]})
    >>> variables = _environment(spec, Task("worker", 1))
    >>> variables["HOROVOD_RANK"], variables["HOROVOD_LOCAL_RANK"], variables["HOROVOD_GLOO_IFACE"]
    ('1', '1', 'lo')
    """
    first = cluster.addresses[cluster.training_tasks[0]]
    host = str(socket.getaddrinfo(first.host, first.port)[0][4][0])
    variables = {**place(cluster, task), **rendezvous_at(host, first.port)}
    defaults = {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "30",
        "HOROVOD_DYNAMIC_PROCESS_SETS": "1",  # for `subset`
    }
    interface = _interface(variables["HOROVOD_HOSTNAME"])
    if interface is not None:
        defaults["HOROVOD_GLOO_IFACE"] = interface
    return {name: os.environ.get(name, value) for name, value in defaults.items()} | variables


def _check_hostname(cluster: ClusterSpec, task: Task, version: str) -> None:
    """Checks that Gloo will choose an address that the other workers can reach.

    The released Horovod 0.28.1 ignores HOROVOD_GLOO_IFACE and transfers data over the address that
    this machine's name resolves to; it crashes if the name does not resolve. A build by `tf-config
    install-horovod` has this fixed, and a tag in its version: see FIXES in
    tf_config/horovod/wheel.py.

    Raises:
      ClusterConfigError: if the name does not resolve to a reachable address.
    """
    hosts = {cluster.addresses[other].host for other in cluster.training_tasks}
    name = socket.gethostname()
    try:
        resolved = {str(info[4][0]) for info in socket.getaddrinfo(name, None)}
    except OSError:
        resolved = set()
    elsewhere = hosts - {cluster.addresses[task].host}
    reachable = {address for address in resolved if not ip_address(address).is_loopback}
    if _FIXED_BUILD_TAG in version or (reachable if elsewhere else resolved):
        return
    raise ClusterConfigError(
        f"The Gloo of this build of Horovod {version} requires a host name that resolves to the "
        f"address of the network interface. Received: {name!r}, which resolves to "
        f"{', '.join(sorted(resolved)) or 'no address'}. Build Horovod with 'tf-config "
        "install-horovod', which fixes this (see BUILD.md), or map the name in /etc/hosts to an "
        "address that the other hosts can reach."
    )


def _interface(host: str) -> str | None:
    """Returns the network interface that has a host's address; None if this machine has none."""
    import psutil  # a requirement of Horovod

    try:
        addresses = {info[4][0] for info in socket.getaddrinfo(host, None)}
    except OSError:
        return None
    for name, entries in psutil.net_if_addrs().items():
        if addresses & {entry.address for entry in entries}:
            return name
    return None
