"""Training with parameter servers: variables on servers, one program in every worker."""

from __future__ import annotations

import atexit
import contextlib
import secrets
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from strategies._tensorflow import global_seed
from strategies.collectives import Collectives, LocalCollectives
from strategies.mirrored import MirroredReduction, local_devices
from strategies.multi_worker import (
    MultiWorkerMirroredStrategy,
    gpus_of,
    start_timeout_seconds,
)
from strategies.reduction import ReductionOptions
from strategies.resolver import config_of, resolver_of
from strategies.server.asynchronous import Async
from strategies.server.collectives import ServerCollectives
from strategies.server.connection import ServerLost, Servers, close, is_gone, join
from strategies.server.extended import Exchange, ServerExtended
from strategies.server.geo import Geo
from strategies.server.half_async import HalfAsync
from strategies.server.placement import MIN_SLICE_SIZE, Chooser, Placement
from strategies.server.presence import AWAITED, HERE, LEFT, SAME_SCRIPT, Presence
from strategies.server.sync import Sync
from strategies.server.values import Values
from tf_config import ClusterConfigError, Task, TFConfig

_MODES = ("sync", "async", "half_async", "geo")
_OF_MODE = {
    "max_merge": ("async",),
    "send_queue_size": ("async",),
    "pull_every": ("async",),
    "geo_steps": ("geo",),
}
_OWN_SETTINGS = ("mode", "placement", "min_slice_size", "compression", *_OF_MODE)
_WIRES = {None: tf.float32, "fp16": tf.float16}
_POLL_SECONDS = 0.05
_NAME_EVERY_SECONDS = 5.0

_made: list[int] = []  # the rank of this process, once it has a strategy


class ParameterServerStrategy(MirroredReduction, tf.distribute.MultiWorkerMirroredStrategy):
    """Trains one model on all workers of TF_CONFIG, with its variables on parameter servers.

    Every worker runs the same script: `fit`, `evaluate` and `predict` of Keras 3 and tf_keras, or
    a loop of your own. It computes with a copy of the variables, sends what came of a batch to the
    servers, which change the variables with the optimizer of `compile`, and brings the new values
    back. `tf-config run --workers 3 --ps 2 train.py` starts servers and workers;
    `strategies.from_tf_config()` makes this strategy where TF_CONFIG has a ps task.

    What is waited for is the mode:

    * "sync": all workers take each step together, and the servers make one change of it. N
      workers follow one process at the same global batch. Nothing is stale. A worker that ends
      before the others counts as one that has no more rows; one that is killed is waited for.
    * "async": nobody waits. Changes leave from a queue, behind the worker's back; a worker lacks at
      most `send_queue_size` of its own steps that are under way, and `pull_every - 1` sent since
      the last pull. How many of the others' it lacks has no bound. Adam over few rows a step
      bears little of this: on the click logs of examples/ an AUC of 0.768, 0.765 and 0.755 came
      of queues of 1, 2 and 4 steps, with 0.766 of one process.
    * "half_async": a worker waits until its own change is made, and goes on from what came of
      it. It lacks none of its own steps, and of the others' those made while it computed.
    * "geo": each worker has an optimizer of its own, and every `geo_steps` steps adds 1/N of its
      progress to the servers' values. It lacks the others' last `geo_steps` steps or more.

    In "sync", `num_replicas_in_sync`, logs, `evaluate` and `predict` are those of all workers,
    as under `MultiWorkerMirroredStrategy`. In the other modes a worker takes no account of the
    others: its logs and results are its own, of its own part of the data, and so is its number of
    steps. Everywhere each global batch is cut by rows.

    What is shared:

    * trainable variables. Those of `min_slice_size` elements or more for each slice are cut by
      rows over the servers;
    * the optimizer's state, beside its variables; in "geo" it is each worker's own;
    * `optimizer.iterations`, of which no count is lost: it is the number of all workers' steps
      (in "sync" of the steps that they take together, in "geo" of the worker's own);
    * the moving means of BatchNormalization and other float state that is not trainable: in
      "sync" the mean over workers, in "async" and "half_async" each worker's changes one after
      the other, in "geo" as the weights.

    Metrics, random seeds and the learning rate are each worker's own; the learning rate of a
    change is that of the worker that sends it.

    Args:
      cluster_resolver: says what the cluster is and which task this process is, in place of
        TF_CONFIG.
      mode: "sync", "async", "half_async" or "geo".
      placement: "round_robin"; "hash" of a variable's name; or a function of its name, its shape
        and the number of servers, which returns the number of one.
      min_slice_size: a variable of n elements has up to n // min_slice_size slices, at most one
        a server. None cuts none, for optimizers that need all of a variable at once.
      max_merge: in "async", how many steps may make one change, of their sum.
      send_queue_size: in "async", how many steps may wait to be sent or be on their way; 1, or
        twice `max_merge`, unless said. 1 is enough to send behind the next step's back.
      pull_every: in "async", steps sent between two pulls of the servers' values.
      geo_steps: in "geo", steps between two exchanges.
      compression: "fp16" sends gradients to the servers as float16; None as they are.
      num_replicas: how many replicas each worker has: on GPUs of its own, or logical CPUs. What
        they compute is summed in the worker, and sent once.
      start_timeout: seconds to wait at the start for the servers, and for the first worker's
        initial values. None is what `tf-config run --start-timeout` says, or 300.

    Raises:
      ClusterConfigError: if TF_CONFIG is wrong or names no parameter server.
      ValueError: if an argument has no meaning, or none in this mode; if the program has such a
        strategy already.
      TimeoutError: if a server, or in "sync" a worker, does not come in time; the message names
        it.
    """

    def __init__(
        self,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
        mode: str = "async",
        *,
        placement: str | Chooser = "round_robin",
        min_slice_size: int | None = MIN_SLICE_SIZE,
        max_merge: int | None = None,
        send_queue_size: int | None = None,
        pull_every: int | None = None,
        geo_steps: int | None = None,
        compression: str | None = None,
        num_replicas: int | None = None,
        start_timeout: float | None = None,
    ):
        settings = {
            "max_merge": max_merge,
            "send_queue_size": send_queue_size,
            "pull_every": pull_every,
            "geo_steps": geo_steps,
        }
        _check(mode, settings, compression)
        if _made:
            raise ValueError(
                "A program makes one ParameterServerStrategy, whose variables the servers know by "
                "the order of their making. Received: a second one. Use the first for all models."
            )
        config = TFConfig.from_env() if cluster_resolver is None else config_of(cluster_resolver)
        config = _with_servers(config)
        places = Placement(len(config.cluster.tasks("ps")), placement, min_slice_size)
        timeout = start_timeout_seconds(start_timeout)
        devices = local_devices(num_replicas, gpus_of(config))
        servers = join(config.cluster, config.task, timeout)
        presences = _arrive(servers, timeout, mode)
        if mode == "sync":
            _await(config.cluster.training_tasks, presences, timeout)
        workers: Collectives = ServerCollectives(servers)
        if servers.size == 1:
            workers = LocalCollectives()
        values = Values(servers, places, timeout)
        resolver = resolver_of(config) if cluster_resolver is None else cluster_resolver
        exchange = _exchange(mode, servers, settings)
        extended = ServerExtended(
            self, workers, devices, ReductionOptions(), resolver, servers, values, exchange,
            in_step=mode == "sync",
            geo=Geo(servers.size, settings["geo_steps"] or 100) if mode == "geo" else None,
            wire=_WIRES[compression],
        )  # fmt: skip
        tf.distribute.Strategy.__init__(self, extended)
        self.mode = mode
        _made.append(servers.rank)
        _share_seed(values)
        atexit.register(_leave, exchange, servers, presences, config.cluster.training_tasks)
        own = "" if mode == "sync" else ": logs, evaluate and predict are of its own rows alone"
        logging.info("Worker %d of %d, mode %s%s.", servers.rank, servers.size, mode, own)

    def placement(self) -> str:
        """Returns what is where: each variable's servers, each server's bytes, and how even."""
        return self.extended.on_servers.report()


def from_tf_config(**options: Any) -> tf.distribute.Strategy:
    """Returns the strategy that fits TF_CONFIG: with parameter servers, or mirrored on its workers.

    Without TF_CONFIG that is one worker, so one script serves a laptop and a cluster.

    >>> from_tf_config().num_replicas_in_sync
    1

    Args:
      **options: as of `ParameterServerStrategy` if TF_CONFIG has a ps task; its own settings
        (`mode` and so on) are passed over where it has none. Else as of
        `MultiWorkerMirroredStrategy`.

    Raises:
      ClusterConfigError: if TF_CONFIG is wrong.
    """
    config = TFConfig.from_env()
    if config is not None and config.cluster.tasks("ps"):
        return ParameterServerStrategy(**options)
    mirrored = {name: value for name, value in options.items() if name not in _OWN_SETTINGS}
    return MultiWorkerMirroredStrategy(**mirrored)


def _exchange(mode: str, servers: Servers, settings: dict[str, int | None]) -> Exchange:
    if mode == "sync":
        return Sync(servers)
    if mode == "async":
        merge = settings["max_merge"] or 1
        return Async(
            servers,
            merge,
            settings["send_queue_size"] or (2 * merge if merge > 1 else 1),
            settings["pull_every"] or 1,
        )
    return HalfAsync(servers)


def _check(mode: str, settings: dict[str, int | None], compression: str | None) -> None:
    if mode not in _MODES:
        raise ValueError(f"mode is one of {', '.join(map(repr, _MODES))}. Received: {mode!r}.")
    if compression not in _WIRES:
        raise ValueError(f"compression is None or 'fp16'. Received: {compression!r}.")
    for name, value in settings.items():
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} is a whole number from 1. Received: {value!r}.")
        if mode not in _OF_MODE[name]:
            raise ValueError(
                f"{name} is a setting of mode={_OF_MODE[name][0]!r}. Received: {name}={value} "
                f"with mode={mode!r}. Leave it out."
            )


def _with_servers(config: TFConfig | None) -> TFConfig:
    if config is None or not config.cluster.tasks("ps"):
        found = "no TF_CONFIG" if config is None else "a TF_CONFIG without one"
        raise ClusterConfigError(
            f"A cluster with parameter servers has a ps task, or more. Received: {found}. Start "
            "the script with 'tf-config run --workers 2 --ps 1 train.py', or take "
            "strategies.MultiWorkerMirroredStrategy, which needs none."
        )
    if config.task not in config.cluster.training_tasks:
        raise ClusterConfigError(
            f"Workers train; a ps task runs 'python -m strategies.serve'. Received: {config.task} "
            "that makes a strategy. Start the job with 'tf-config run', which sees to that."
        )
    return config


def _arrive(servers: Servers, timeout: float, mode: str) -> list[Presence]:
    """Tells all servers that this worker is there."""
    presences = [Presence(f"grpc://{server.address}", servers.size) for server in servers.servers]
    start = time.monotonic()
    for presence, server in zip(presences, servers.servers, strict=True):
        while not presence.is_begun():
            if time.monotonic() - start > timeout:
                raise TimeoutError(
                    "A parameter server is 'python -m strategies.serve'. Received: another "
                    f"program at {server.address}, ps {server.number}. Start it so."
                )
            time.sleep(_POLL_SECONDS)
        if mode == "sync" and servers.rank not in presence.workers(AWAITED):
            raise ValueError(
                "In mode='sync' workers go step by step together, and one that was away has "
                f"missed some. Received: worker {servers.rank} of {servers.size}, which was there "
                "before. Start all tasks again, the servers too ('tf-config run --max-restarts' "
                "does), or take another mode."
            )
        presence.tell(servers.rank, HERE)
    return presences


def _await(tasks: Sequence[Task], presences: list[Presence], timeout: float) -> None:
    """Waits until all workers have come."""
    start = named = time.monotonic()
    while missing := sorted({rank for each in presences for rank in each.workers(AWAITED)}):
        now = time.monotonic()
        names = ", ".join(str(tasks[rank]) for rank in missing)
        if now - start > timeout:
            raise TimeoutError(
                f"In mode='sync' all workers come within {timeout:g} s. Received: no {names}. "
                f"{SAME_SCRIPT}"
            )
        if now - named > _NAME_EVERY_SECONDS:
            named = now
            logging.warning("Waiting for %s: %.0f s of %g s.", names, now - start, timeout)
        time.sleep(_POLL_SECONDS)


def _leave(
    exchange: Exchange, servers: Servers, presences: list[Presence], tasks: Sequence[Task]
) -> None:
    """Sends what is left, and tells all servers that this worker has ended."""
    with contextlib.suppress(ServerLost, tf.errors.OpError):
        exchange.drain()
    gone = [server for server in servers.servers if is_gone(server.address)]
    there = [server for server in servers.servers if server not in gone]
    close(session for server in there for session in server.sessions())
    for presence, server in zip(presences, servers.servers, strict=True):
        if server in gone:
            continue
        with contextlib.suppress(tf.errors.OpError):
            presence.tell(servers.rank, LEFT)
            if server.number == 0 and (missing := presence.workers(AWAITED)):
                names = ", ".join(str(tasks[rank]) for rank in missing)
                logging.warning("%s did not come in all the time. %s", names, SAME_SCRIPT)
    last = [presence.session for presence in presences]
    close([*last, *(session for server in gone for session in server.sessions())])


def _share_seed(values: Values) -> None:
    """Gives all workers the same random seed, for they cut the same batches."""
    seed = values.add(
        "seed", (), tf.int64, lambda: np.int64(secrets.randbelow(2**31)), is_counter=True
    )
    if global_seed() is None:
        tf.random.set_seed(int(values.read([seed])[0]))
