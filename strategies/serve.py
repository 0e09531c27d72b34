"""A parameter server: `python -m strategies.serve`, in a process that is a ps task of TF_CONFIG.

It holds the variables that workers create on it until the last worker has ended. `tf-config run`
and `tf-config exec` start it automatically for each ps task.
"""

from __future__ import annotations

import os
import sys
import time

import tensorflow as tf

from strategies.ps.membership import AWAITED, LEFT, PRESENT, SAME_SCRIPT, Membership
from tf_config import ClusterConfigError, Task, TFConfig

_POLL_SECONDS = 0.5
# Time for the last worker to receive the reply to its announcement that it ends.
_LEAVE_SECONDS = 1.0
_LOG_EVERY_SECONDS = 30.0


def main() -> int:
    """Runs a parameter server until all workers have ended; returns the exit code."""
    try:
        config = TFConfig.from_env()
        task = _validate_task(config)
    except ClusterConfigError as error:
        print(f"strategies.serve: {error}", file=sys.stderr)
        return 2
    cluster = config.cluster  # type: ignore[union-attr]
    address = cluster.addresses[task]
    jobs = tf.train.ClusterSpec({"ps": {task.index: str(address)}})
    try:
        # Without GPUs, which a server does not use: it would allocate the memory of all of them.
        # Settings of `tf.config` do not apply to a `tf.distribute.Server`.
        without_gpus = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
        server = tf.distribute.Server(
            jobs, job_name="ps", task_index=task.index, config=without_gpus
        )
    except tf.errors.OpError as error:
        print(
            "strategies.serve: A parameter server must be able to listen on its address in "
            f"TF_CONFIG. Received: {address} for {task}, where TensorFlow's server cannot start: "
            f"{error.message}. Use a free port of this machine.",
            file=sys.stderr,
        )
        return 1
    workers = cluster.training_tasks
    membership = Membership(server.target, len(workers))
    membership.initialize(task.index)
    count = f"{len(workers)} worker{'s'[: len(workers) > 1]}"
    print(f"{task} serves at {address} for {count}", flush=True)
    logged, reported = time.monotonic(), ""
    while len(membership.workers(LEFT)) < len(workers):
        time.sleep(_POLL_SECONDS)
        if time.monotonic() - logged > _LOG_EVERY_SECONDS:
            logged = time.monotonic()
            missing = ", ".join(str(workers[rank]) for rank in membership.workers(AWAITED))
            # Workers that are present report which workers they wait for.
            if missing and not membership.workers(PRESENT):
                is_over = bool(membership.workers(LEFT))
                what = (
                    f"keeps serving, because {missing} never connected"
                    if is_over
                    else f"waits for {missing}"
                )
                print(f"{task} {what}.", SAME_SCRIPT, flush=True)
            there = ", ".join(str(workers[rank]) for rank in membership.workers(PRESENT))
            if there and membership.workers(LEFT) and there != reported:
                reported = there
                print(
                    f"{task} keeps serving {there}, while other workers have ended. If {there} was "
                    "killed, restart it, or end this server.",
                    flush=True,
                )
    time.sleep(_LEAVE_SECONDS)
    return 0


def _validate_task(config: TFConfig | None) -> Task:
    if config is None or config.task.type != "ps":
        task = "no TF_CONFIG" if config is None else f"TF_CONFIG of {config.task}"
        raise ClusterConfigError(
            f"A parameter server must be a ps task. Received: {task}. Start the job with "
            "'tf-config run --ps 1 train.py'."
        )
    return config.task


if __name__ == "__main__":
    try:
        code = main()
    except KeyboardInterrupt:
        code = 130
    # TensorFlow's server cannot be shut down, and its threads would keep the process alive.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
