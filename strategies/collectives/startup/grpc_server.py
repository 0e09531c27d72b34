"""TensorFlow's gRPC server, through which this process joins a cluster as a worker."""

from __future__ import annotations

import atexit
import contextlib
import os
import time

import tensorflow as tf

from strategies.collectives.startup.liveness import LivenessWatch
from strategies.collectives.startup.rendezvous import meeting
from strategies.collectives.startup.waiting import wait_until
from strategies.compat.tensorflow import context
from strategies.utils.background_thread import is_ending_by_error
from strategies.utils.devices import HOST
from tf_config import ClusterConfigError, ClusterSpec, Task

_ANSWER_SECONDS = 2.0
_LEAVE_SECONDS = 5.0
# The group key of the operation before a worker ends; all other group keys are higher.
_LEAVE_GROUP = 0

# A process has one TensorFlow server.
_joined: tuple[ClusterSpec, Task] | None = None


def join(cluster: ClusterSpec, task: Task, timeout: float) -> None:
    """Waits for all workers and starts TensorFlow's server; called again, does nothing.

    Args:
      cluster: the workers.
      task: the task of this process.
      timeout: the number of seconds to wait for the other workers.

    Raises:
      TimeoutError: if a worker does not arrive in time; the message names it.
      ClusterConfigError: if this worker's port is taken, or the workers' clusters differ.
      RuntimeError: if TensorFlow has already created tensors or joined another job.
    """
    global _joined
    if _joined == (cluster, task):
        return
    if _joined is not None:
        raise RuntimeError(
            "A process cannot join more than one multi-worker job. Received: a second one in this "
            f"process, as {_joined[1]}. Use one TF_CONFIG per process."
        )
    start = time.monotonic()
    _configure(cluster, task)
    with meeting(cluster, task, timeout, "tensorflow"):
        pass
    _serve_tensorflow(cluster, task)
    _wait_for_servers(cluster, task, start, timeout)
    _joined = (cluster, task)
    watch = LivenessWatch({device_of(other): str(other) for other in cluster.training_tasks})
    watch.start()
    atexit.register(_leave, len(cluster.training_tasks), watch, os.getpid())


def device_of(task: Task) -> str:
    """Returns the device name of a task.

    >>> device_of(Task("worker", 1))
    '/job:worker/replica:0/task:1'
    """
    return f"/job:{task.type}/replica:0/task:{task.index}"


def _leave(size: int, watch: LivenessWatch, process: int) -> None:
    """Waits briefly for the other workers before the process ends.

    Otherwise the process could end before the last values that it sent have left it. In a forked
    child process, this function does nothing.
    """
    if os.getpid() != process:
        return
    watch.stop()
    if is_ending_by_error():  # no other worker is leaving
        return
    with contextlib.suppress(tf.errors.OpError), tf.device(HOST):
        tf.raw_ops.CollectiveReduceV2(
            input=[0],
            group_size=size,
            group_key=_LEAVE_GROUP,
            instance_key=1,
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
            communication_hint="ring",
            timeout_seconds=_LEAVE_SECONDS,
        )


def _configure(cluster: ClusterSpec, task: Task) -> None:
    try:
        context().configure_collective_ops(
            collective_leader=device_of(cluster.training_tasks[0]),
            device_filters=(device_of(task),),
        )
    except (RuntimeError, ValueError):
        raise RuntimeError(
            "TensorFlow's collectives must be set up before the first tensor is created. Received: "
            "TensorFlow is already initialized, or has the collectives of another strategy. Create "
            "the strategy at the start of the script, or use Horovod (communication='horovod')."
        ) from None


def _serve_tensorflow(cluster: ClusterSpec, task: Task) -> None:
    jobs: dict[str, dict[int, str]] = {}
    for other in cluster.training_tasks:
        jobs.setdefault(other.type, {})[other.index] = str(cluster.addresses[other])
    definition = tf.train.ServerDef(
        cluster=tf.train.ClusterSpec(jobs).as_cluster_def(),
        default_session_config=context().config,
        job_name=task.type,
        task_index=task.index,
        protocol="grpc",
    )
    context().enable_collective_ops(definition)
    try:
        context().ensure_initialized()
    except (tf.errors.OpError, RuntimeError) as error:
        raise ClusterConfigError(
            "A worker must be able to listen on its address in TF_CONFIG. Received: "
            f"{cluster.addresses[task]} for {task}, where TensorFlow's server cannot start: "
            f"{error}. Use a free port of this machine."
        ) from None


def _wait_for_servers(cluster: ClusterSpec, task: Task, start: float, timeout: float) -> None:
    """Waits until the server of every worker answers; an error names those that do not."""
    missing = [other for other in cluster.training_tasks if other != task]

    def all_answer() -> bool:
        missing[:] = [other for other in missing if not _answers(other)]
        return not missing

    def names() -> str:
        return ", ".join(f"{other} ({cluster.addresses[other]})" for other in missing)

    wait_until(
        all_answer,
        lambda: f"the server of {names()}",
        lambda _: (
            f"The servers of all workers must answer within {timeout:g} s. Received at "
            f"{task}: no answer from {names()}. Check that none of them failed, and that their "
            "addresses can be reached."
        ),
        timeout,
        waiter=task,
        start=start,
    )


def _answers(task: Task) -> bool:
    try:
        context().check_collective_ops_peer_health(
            device_of(task), timeout_in_ms=int(_ANSWER_SECONDS * 1000)
        )
    except tf.errors.OpError:
        return False
    return True
