"""Training with parameter servers: variables on the servers, one program on every worker."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from strategies.collectives import Collectives, LocalCollectives
from strategies.collectives.ordered_calls import OrderedCalls
from strategies.collectives.selection import resolve_communication
from strategies.collectives.startup.waiting import wait_until
from strategies.compat.tensorflow import Session
from strategies.core.progress_bars import print_whole_bars
from strategies.core.resolver import config_of, resolver_of
from strategies.core.scope_use import warn_of_training_outside
from strategies.core.seeds import share_seed
from strategies.core.startup_message import announce
from strategies.diagnostics.operations import WatchedCollectives
from strategies.diagnostics.watchdog import Watchdog, step_timeout_seconds
from strategies.mirrored import ReplicatedStrategy, local_devices
from strategies.multi_worker import elastic_error, gpus_of, start_timeout_seconds
from strategies.ps.collectives import ServerCollectives
from strategies.ps.connection import (
    ServerConnection,
    ServerGroup,
    ServerUnavailableError,
    close,
    connect_servers,
    join_while_there,
)
from strategies.ps.extended import ParameterServerExtended
from strategies.ps.leaving import LeaveRequest
from strategies.ps.membership import (
    AWAITED,
    JOINING,
    LEFT,
    PRESENT,
    SAME_SCRIPT,
    Membership,
)
from strategies.ps.modes import MODES, Mode
from strategies.ps.options import ParameterServerOptions
from strategies.ps.placement import Placement
from strategies.ps.presence import Presence
from strategies.ps.registry import VariableRegistry
from strategies.ps.restarts import ServerRestarts
from strategies.ps.watchdog_store import watch_by_servers
from strategies.reduction import ReductionOptions
from tf_config import ClusterConfigError, Task, TFConfig
from tf_config.launcher.reports import CAN_REJOIN, report
from tf_config.launcher.settings import REJOINS_VARIABLE, server_saves_seconds
from tf_config.worker_range import WorkerRange

_WIRE_DTYPES = {None: tf.float32, "fp16": tf.float16}

_created_ranks: list[int] = []  # the rank of this process, once it has a strategy


class ParameterServerStrategy(ReplicatedStrategy, tf.distribute.MultiWorkerMirroredStrategy):
    """Training on all workers of TF_CONFIG, with the variables on parameter servers.

    Every worker runs the same script: `fit`, `evaluate` and `predict` of Keras 3 or tf_keras, or
    a custom training loop. In each step it computes gradients with its copy of the variables,
    pushes them to the servers, which update the variables with the optimizer of `compile`, and
    pulls the new values. `tf-config run --workers 3 --ps 2 train.py` starts servers and workers;
    `strategies.from_tf_config()` creates this strategy if TF_CONFIG has a ps task.

    The mode determines what a worker waits for, and how stale the variables are that it uses:

    * "sync": all workers take each step together, and the servers make one update from it. N
      workers train like one process with the same global batch, and nothing is stale. A worker that
      ends before the others counts as one without examples; a worker that is killed is waited for.
    * "async": no worker waits. Updates are queued and sent in the background. A worker's copy lacks
      at most `send_queue_size` of its own steps that are queued or being sent, and `pull_every - 1`
      steps that were sent since the last pull. The number of other workers' steps that it lacks is
      not bounded. Adam tolerates little staleness with few examples per step: on the click logs of
      examples/, queues of 1, 2 and 4 steps gave an AUC of 0.768, 0.765 and 0.755, and one process
      gave 0.766.
    * "half_async": a worker waits until its own update has been made, and continues with the new
      values. Its copy lacks none of its own steps; it lacks those that other workers made while it
      computed.
    * "geo": each worker has its own optimizer, and every `geo_steps` steps adds 1/N of its
      progress to the servers' values. Its copy lacks the last `geo_steps` steps or more of the
      other workers. Of the rows of a `DistributedEmbedding`, it has those that it has used since
      its last exchange; with `geo_rows="servers"`, the servers train them in every step.

    In "sync", `num_replicas_in_sync`, logs, `reduce` and `gather` cover all workers, as under
    `MultiWorkerMirroredStrategy`. In the other modes each worker is independent: its logs cover its
    own part of the data, and its number of steps is its own. In every mode, each global batch that
    trains is sharded by examples. Outside of "sync", a step without examples for a worker leaves
    its variables unchanged, except for what optimizers do in "geo"; the worker sends nothing, and
    the step is not counted in `iterations` on the servers.

    Keras's `evaluate`, `predict` and validation in `fit` cover all examples, on every worker. In
    "sync" the workers share the examples. In the other modes each worker processes all of them with
    the servers' current values (in "geo" with its own), and waits for no other worker. A dataset
    that belongs to one worker (`distribute_datasets_from_function`, `AutoShardPolicy.OFF`) stays
    its own, with a warning.

    The workers share:

    * the trainable variables. A variable is split along its first axis over the servers, as far
      as each slice has at least `min_slice_size` elements;
    * the optimizer's slot variables, next to their variables; in "geo" each worker has its own,
      except for those of embedding rows;
    * `optimizer.iterations`, of which no count is lost: the number of steps of all workers (in
      "sync", of the steps that they take together; in "geo", of the worker's own);
    * the moving means of BatchNormalization and other float state that is not trainable: in
      "sync" the mean over the workers, in "async" and "half_async" the changes of each worker one
      after the other, in "geo" as for the weights.

    Each worker has its own metrics, random seeds and learning rate; an update uses the learning
    rate of the worker that sends it.

    Except in "sync", workers can join and leave a job of `tf-config run --workers 2:4 --ps 1` while
    it runs. The examples of each epoch are then divided among the workers that are present when
    the first of them begins it; `present_workers` returns their number, which is the N of "geo".

    Args:
      cluster_resolver: the cluster and the task of this process, instead of TF_CONFIG.
      mode: "sync", "async", "half_async" or "geo"; "async" by default.
      options: the mode, the placement of the variables, and how far workers may run ahead.
      num_replicas: the number of replicas of each worker, on GPUs of its own or logical CPUs. What
        they compute is summed in the worker and sent once.
      start_timeout: seconds to wait at the start for the servers, in "sync" for the other workers,
        and for the first worker's initial values. None means the value of
        `tf-config run --start-timeout`, or 300.
      **settings: single attributes of `ParameterServerOptions`, such as `placement`, instead of
        `options`.

    Attributes:
      options: the options in effect.

    Raises:
      ClusterConfigError: if TF_CONFIG is wrong or names no parameter server.
      TypeError: if a setting does not exist.
      ValueError: if an argument is not valid, or cannot be used in this mode, or if the program
        already has a `ParameterServerStrategy`.
      TimeoutError: if a server, or in "sync" a worker, does not start in time; the message names
        it.
    """

    def __init__(
        self,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
        mode: str | None = None,
        *,
        options: ParameterServerOptions | None = None,
        num_replicas: int | None = None,
        start_timeout: float | None = None,
        **settings: Any,
    ):
        if mode is not None:
            settings = {"mode": mode, **settings}
        self.options = options_of(options, settings)
        if _created_ranks:
            raise ValueError(
                "A program cannot create more than one ParameterServerStrategy, because the "
                "servers identify variables by the order of their creation. Received: a second "
                "one. Use the first for all models."
            )
        config = TFConfig.from_env() if cluster_resolver is None else config_of(cluster_resolver)
        config = _require_servers(config)
        options = self.options
        elastic = WorkerRange.from_env()
        if elastic is not None and MODES[options.mode].in_step:
            raise elastic_error("mode='sync'", elastic)
        placement = Placement(
            len(config.cluster.tasks("ps")), options.placement, options.min_slice_size
        )
        timeout = start_timeout_seconds(start_timeout)
        may_share = resolve_communication(None) in ("auto", "shared_memory")
        devices = local_devices(num_replicas, gpus_of(config))
        servers = connect_servers(config.cluster, config.task, timeout)
        update_mode = create_update_mode(options, servers)
        joins = elastic is not None and os.environ.get(REJOINS_VARIABLE) == "1"
        state = JOINING if joins else PRESENT
        memberships = _register(servers, timeout, update_mode.in_step, state)
        # From here on, the servers learn of this worker's end, also if it fails below.
        atexit.register(_leave, update_mode, servers, memberships, config.cluster.training_tasks)
        if update_mode.in_step:
            _wait_for_workers(config.cluster.training_tasks, memberships, timeout)
        else:
            report(CAN_REJOIN)
            if server_saves_seconds() is not None:
                _expect_restarts(servers, memberships, timeout)
        if elastic is not None:
            servers.presence = Presence(
                servers.servers[0], memberships, servers.rank, servers.size, joins
            )
        workers: Collectives = LocalCollectives()
        calls = OrderedCalls()
        where = f"mode '{options.mode}' with variables on TF_CONFIG's ps tasks ({len(servers)})"
        if elastic is not None:
            where += f", of which {elastic.least} or more are present"
        if servers.size > 1:
            on_servers = ServerCollectives(servers, calls=calls)
            workers = WatchedCollectives(on_servers, servers.operations)
        registry = VariableRegistry(servers, placement, timeout)
        resolver = resolver_of(config) if cluster_resolver is None else cluster_resolver
        extended = ParameterServerExtended(
            self, workers, devices, ReductionOptions(), resolver, servers, registry, update_mode,
            calls, wire=_WIRE_DTYPES[options.compression],
        )  # fmt: skip
        tf.distribute.Strategy.__init__(self, extended)
        if servers.presence is not None and servers.rank:
            # Not the first worker, which sets initial values and writes files.
            LeaveRequest(servers.presence.may_leave, extended.leave)
        _created_ranks.append(servers.rank)
        share_seed(functools.partial(_share_number, registry))
        if update_mode.in_step and servers.size > 1:
            watchdog, session = watch_by_servers(servers, config.cluster, config.task)
            # Registered later than _leave, so it runs earlier: the watchdog needs a server.
            atexit.register(_end_watch, watchdog, session, servers.servers[0])
            # Only for workers in step; in the other modes, workers may join and leave at any time.
            names = [str(task) for task in config.cluster.training_tasks]
            with servers.operations.track_eager("start of shared memory"):
                if on_servers.share_memory(names, may_share):
                    where += ", sums in shared memory (all workers are on this host)"
        print_whole_bars(is_first=servers.rank == 0)
        announce(self, workers, devices, where)
        warn_of_training_outside(type(self).__name__, servers.size)
        logging.debug("Worker %d of %d: %s", servers.rank, servers.size, options)

    @property
    def _cluster_coordinator(self) -> None:
        # The attribute that tf.distribute.coordinator.ClusterCoordinator reads first.
        raise RuntimeError(
            "ClusterCoordinator cannot be used with this ParameterServerStrategy, because every "
            "worker runs the training loop itself. Received: a ClusterCoordinator. Call the step "
            "directly instead of coordinator.schedule(step), and strategies.barrier(strategy) "
            "instead of join()."
        )

    @property
    def mode(self) -> str:
        """The update mode: "sync", "async", "half_async" or "geo"."""
        return self.options.mode

    def present_workers(self) -> int:
        """Returns the number of workers that divide the examples of the current epoch.

        It changes only in a job of `tf-config run --workers MIN:MAX`.
        """
        presence = self.extended.servers.presence
        return self.extended.servers.size if presence is None else int(presence.workers.numpy())

    def placement(self) -> str:
        """Returns a table with the servers of each variable, the bytes of each, and the balance."""
        return self.extended.registry.report()


def options_of(
    options: ParameterServerOptions | None, settings: dict[str, Any]
) -> ParameterServerOptions:
    """Returns the options, given as one object or as single settings.

    Raises:
      TypeError: if a setting does not exist.
      ValueError: if both are given, or if a value is not valid.
    """
    known = [field.name for field in dataclasses.fields(ParameterServerOptions)]
    for name in settings:
        if name not in known:
            advice = (
                "Use min_slice_size=N, in elements."
                if name == "variable_partitioner"
                else "Omit it."
            )
            raise TypeError(
                "The arguments of ParameterServerStrategy must be cluster_resolver, num_replicas, "
                f"start_timeout, {', '.join(known)}, or options=ParameterServerOptions(...). "
                f"Received: {name!r}. {advice}"
            )
    if options is None:
        return ParameterServerOptions(**settings)
    if not isinstance(options, ParameterServerOptions):
        raise ValueError(
            f"options must be a strategies.ParameterServerOptions. Received: {options!r}. "
            "strategies.from_tf_config accepts the options of both strategies."
        )
    if settings:
        raise ValueError(
            "A setting cannot be given both as an argument and in options. Received: "
            f"{', '.join(settings)} beside {options}. Set it in the options."
        )
    return options


def create_update_mode(options: ParameterServerOptions, servers: ServerGroup) -> Mode:
    """Creates the update mode that the options select."""
    cls = MODES[options.mode]
    settings = {name: getattr(options, name) for name in cls.settings}
    return cls(servers, **{name: each for name, each in settings.items() if each is not None})


def _require_servers(config: TFConfig | None) -> TFConfig:
    if config is None or not config.cluster.tasks("ps"):
        received = "no TF_CONFIG" if config is None else "a TF_CONFIG without one"
        raise ClusterConfigError(
            f"ParameterServerStrategy requires at least one ps task. Received: {received}. Start "
            "the script with 'tf-config run --workers 2 --ps 1 train.py', or use "
            "strategies.MultiWorkerMirroredStrategy, which requires none."
        )
    if config.task not in config.cluster.training_tasks:
        raise ClusterConfigError(
            "A ps task must run 'python -m strategies.serve'. Received: a strategy created by "
            f"{config.task}. Start the job with 'tf-config run', which starts the servers."
        )
    return config


def _register(servers: ServerGroup, timeout: float, in_step: bool, state: int) -> list[Membership]:
    memberships = [
        Membership(f"grpc://{server.address}", servers.size) for server in servers.servers
    ]
    start = time.monotonic()
    for membership, server in zip(memberships, servers.servers, strict=True):
        _wait_until_serving(membership, server, start, timeout)
        if (number := membership.number()) != server.number:
            raise ValueError(
                f"Each ps task must have its own address. Received: ps {number} answers at "
                f"{server.address}, the address of ps {server.number}. Correct the addresses: "
                "TensorFlow's servers listen on all addresses of a host, so two servers on one "
                "host must have different ports."
            )
        if in_step and servers.rank not in membership.workers(AWAITED):
            raise ValueError(
                "In mode='sync' a worker cannot rejoin the job, because it has missed steps. "
                f"Received: worker {servers.rank} of {servers.size}, which had joined before. "
                "Restart all tasks, the servers included ('tf-config run --max-restarts' does "
                "this), or use another mode."
            )
    # Only after all servers have been checked: the other workers start once this one is present, so
    # if a check failed later, they would wait for it in their first step.
    for membership in memberships:
        membership.set_state(servers.rank, state)
    return memberships


def _expect_restarts(
    servers: ServerGroup, memberships: Sequence[Membership], timeout: float
) -> None:
    """Makes the connections wait for servers that the launcher restarts in place."""
    for membership, server in zip(memberships, servers.servers, strict=True):
        server.expect_restarts(
            ServerRestarts(
                server.number, server.address, membership, servers.rank, timeout,
                functools.partial(_state_of, servers),
            )
        )  # fmt: skip


def _state_of(servers: ServerGroup) -> int:
    return PRESENT if servers.presence is None else servers.presence.state


def _wait_until_serving(
    membership: Membership, server: ServerConnection, start: float, timeout: float
) -> None:
    wait_until(
        membership.is_initialized,
        lambda: f"{server.address}, ps {server.number}",
        lambda name: (
            "A ps task must run 'python -m strategies.serve'. Received: another program at "
            f"{name}. Start the job with 'tf-config run', which starts the servers."
        ),
        timeout,
        start=start,
    )


def _wait_for_workers(tasks: Sequence[Task], memberships: list[Membership], timeout: float) -> None:

    def missing() -> list[int]:
        return sorted({rank for each in memberships for rank in each.workers(AWAITED)})

    wait_until(
        lambda: not missing(),
        lambda: ", ".join(str(tasks[rank]) for rank in missing()),
        lambda names: (
            f"In mode='sync' all workers must start within {timeout:g} s. Received: nothing from "
            f"{names}. {SAME_SCRIPT}"
        ),
        timeout,
    )


def _end_watch(watchdog: Watchdog, session: Session, server: ServerConnection) -> None:
    watchdog.leave()
    close([session], server)


def _leave(
    update_mode: Mode,
    servers: ServerGroup,
    memberships: list[Membership],
    tasks: Sequence[Task],
) -> None:
    """Sends the remaining updates, and tells all servers that this worker has ended.

    In this order: a server ends when the last worker has told it so.
    """
    with contextlib.suppress(ServerUnavailableError, tf.errors.OpError):
        update_mode.drain()
    if servers.presence is not None:
        servers.presence.end()
    for membership, server in zip(memberships, servers.servers, strict=True):
        # A server that is restarted at this moment has to know, too.
        with contextlib.suppress(ServerUnavailableError, tf.errors.OpError):
            server.notice_restart()
        close(server.sessions(), server)
        if server.is_there():
            arguments = membership, server, servers.rank, tasks
            thread = threading.Thread(target=_announce_end, args=arguments, daemon=True)
            thread.start()
            join_while_there([thread], server, step_timeout_seconds())
        close(membership.sessions, server)


def _announce_end(
    membership: Membership, server: ServerConnection, rank: int, tasks: Sequence[Task]
) -> None:
    with contextlib.suppress(tf.errors.OpError):
        membership.set_state(rank, LEFT)
        if server.number == 0 and (missing := membership.workers(AWAITED)):
            names = ", ".join(str(tasks[rank]) for rank in missing)
            logging.warning("%s never connected. %s", names, SAME_SCRIPT)


def _share_number(registry: VariableRegistry, number: int) -> int:
    """Returns the first worker's number on all workers, shared through the servers."""
    shared = registry.add("seed", (), tf.int64, lambda: np.int64(number), is_counter=True)
    return int(registry.read([shared])[0])
