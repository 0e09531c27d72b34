"""A parameter server: `python -m strategies.serve`, in a process that is a ps task of TF_CONFIG.

It holds the variables that workers create on it until the last worker has ended. `tf-config run`
and `tf-config exec` start it automatically for each ps task. If `tf-config run` may restart it in
place, it saves its state regularly, and restores it when it was restarted.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import tensorflow as tf

from strategies.ps.membership import (
    AWAITED,
    LEFT,
    PRESENT,
    SAME_SCRIPT,
    VACANT,
    Membership,
    is_over,
)
from strategies.ps.saved_state import SaveDirectory, SavedState, restore
from strategies.ps.silence import SILENT_SECONDS, SilentWorkers
from strategies.ps.state_saver import StateSaver
from strategies.utils.threads import default_inter_op_threads
from tf_config import ClusterConfigError, ClusterSpec, Task, TFConfig
from tf_config.launcher.reports import CAN_REJOIN, report
from tf_config.launcher.settings import REJOINS_VARIABLE, server_saves_seconds
from tf_config.worker_range import WorkerRange, started_workers

_POLL_SECONDS = 0.5
# Time for the last worker to receive the reply to its announcement that it ends.
_LEAVE_SECONDS = 1.0
_LOG_EVERY_SECONDS = 30.0


def main() -> int:
    """Runs a parameter server until all workers have ended; returns the exit code."""
    try:
        config = TFConfig.from_env()
        task = _validate_task(config)
        seconds = server_saves_seconds()
        workers = len(config.cluster.training_tasks)  # type: ignore[union-attr]
        started_workers(os.environ, workers)
        WorkerRange.from_env()
    except ClusterConfigError as error:
        print(f"strategies.serve: {error}", file=sys.stderr)
        return 2
    cluster = config.cluster  # type: ignore[union-attr]
    if seconds is None:
        return _serve(cluster, task, None)
    # The launcher ends servers by this signal when the workers are done.
    signal.signal(signal.SIGTERM, _exit)
    saves = _Saves(SaveDirectory.of(task), seconds)
    try:
        return _serve(cluster, task, saves)
    finally:
        saves.directory.remove()


def _exit(number: int, frame: object) -> None:
    del frame
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


class _Saves(NamedTuple):
    """How a server that may be restarted in place saves its state.

    Attributes:
      directory: the directory of the saves.
      seconds: the time between two saves.
    """

    directory: SaveDirectory
    seconds: float

    def begin(self, is_restarted: bool) -> SavedState | None:
        """Returns the state to restore; None if the server starts for the first time.

        Raises:
          ValueError: if the server was restarted, and its state was not saved or is damaged.
          OSError: if the directory cannot be created or read.
        """
        if not is_restarted:
            self.directory.create()
            return None
        saved = self.directory.latest()
        if saved is None:
            raise ValueError(f"no complete save in {str(self.directory.path)!r}")
        self.directory.lock()
        return saved

    def restore(
        self,
        saved: SavedState,
        target: str,
        membership: Membership,
        number: int,
        initial: Sequence[int],
    ) -> str:
        """Restores a state and lets workers continue; returns a description of the state.

        Raises:
          ValueError: if the states of the workers are damaged.
          tf.errors.OpError: if the values are damaged.
        """
        states = self.directory.worker_states() or initial
        restore(target, saved)
        age = time.time() - saved.time
        membership.initialize(number, states, age)
        # The server can be restarted again, before it saves for the first time.
        report(CAN_REJOIN)
        return f"its state of {age:.0f} s ago ({saved.size() / 1e6:.1f} MB)"

    @contextlib.contextmanager
    def saving(self, target: str, task: Task) -> Iterator[None]:
        """Saves the state while the block runs."""
        saver = StateSaver(
            target,
            self.directory,
            self.seconds,
            on_first=lambda: report(CAN_REJOIN),
            warn=lambda text: print(f"{task}: {text}", flush=True),
        )
        saver.start()
        try:
            yield
        finally:
            saver.stop()


def _serve(cluster: ClusterSpec, task: Task, saves: _Saves | None) -> int:
    """Runs the server, which restores its state if it was restarted; returns the exit code."""
    address, workers = cluster.addresses[task], cluster.training_tasks
    is_restarted = os.environ.get(REJOINS_VARIABLE) == "1"
    try:
        saved = None if saves is None else saves.begin(is_restarted)
    except (OSError, ValueError) as error:
        if is_restarted:
            return _refuse_restart(str(error))
        print(f"{task} saves nothing, and cannot be restarted alone: {error}", flush=True)
        saves = saved = None
    jobs = tf.train.ClusterSpec({"ps": {task.index: str(address)}})
    try:
        server = tf.distribute.Server(
            jobs, job_name="ps", task_index=task.index, config=_configuration(saves is not None)
        )
    except tf.errors.OpError as error:
        print(
            "strategies.serve: A parameter server must be able to listen on its address in "
            f"TF_CONFIG. Received: {address} for {task}, where TensorFlow's server cannot start: "
            f"{error.message}. Use a free port of this machine.",
            file=sys.stderr,
        )
        return 1
    membership = Membership(server.target, len(workers))
    what = f"at {address} for {len(workers)} worker{'s'[: len(workers) > 1]}"
    if saves is None or saved is None:
        membership.initialize(task.index, _initial_states(len(workers)))
        print(f"{task} serves {what}", flush=True)
    else:
        try:
            initial = _initial_states(len(workers))
            state = saves.restore(saved, server.target, membership, task.index, initial)
        except (ValueError, tf.errors.OpError) as error:
            return _refuse_restart(str(error))
        print(f"{task} serves again {what}, with {state}", flush=True)
    with contextlib.nullcontext() if saves is None else saves.saving(server.target, task):
        _wait_for_workers(task, workers, membership, saves)
        time.sleep(_LEAVE_SECONDS)
    return 0


def _refuse_restart(reason: str) -> int:
    """Prints why the server cannot take the place of one that was lost; returns the exit code."""
    print(
        "strategies.serve: A parameter server that is restarted alone must have saved its state. "
        f"Received: {reason}. Restart the job, including its servers, from its last checkpoint.",
        file=sys.stderr,
    )
    return 1


def _configuration(saves_state: bool) -> tf.compat.v1.ConfigProto:
    # Without GPUs, which a server does not use: it would allocate the memory of all of them.
    # Settings of `tf.config` do not apply to a `tf.distribute.Server`.
    config = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
    if saves_state:
        # Writing a save takes a thread; with a single one, all updates would wait for the disk.
        config.inter_op_parallelism_threads = default_inter_op_threads() + 1
    return config


def _initial_states(workers: int) -> list[int]:
    started = started_workers(os.environ, workers)
    return [AWAITED] * started + [VACANT] * (workers - started)


def _wait_for_workers(
    task: Task, workers: Sequence[Task], membership: Membership, saves: _Saves | None
) -> None:
    """Returns when all workers have ended."""
    logged, reported = time.monotonic(), ""
    states = written = membership.states()
    silent = None if WorkerRange.from_env() is None else SilentWorkers(membership)
    while not is_over(states):
        time.sleep(_POLL_SECONDS)
        states = membership.states()
        for rank in () if silent is None else silent.find(states):
            membership.set_state(rank, LEFT)
            print(
                f"{task} has not heard of {workers[rank]} for {SILENT_SECONDS:.0f} s; the others "
                "continue without it",
                flush=True,
            )
        if saves is not None and states != written:
            with contextlib.suppress(OSError):
                saves.directory.write_worker_states(states)
            written = states
        if time.monotonic() - logged > _LOG_EVERY_SECONDS:
            logged = time.monotonic()
            missing, there = (_names(workers, states, state) for state in (AWAITED, PRESENT))
            # Workers that are present report which workers they wait for.
            if missing and not there:
                has_ended = LEFT in states
                what = (
                    f"keeps serving, because {missing} never connected"
                    if has_ended
                    else f"waits for {missing}"
                )
                print(f"{task} {what}.", SAME_SCRIPT, flush=True)
            if there and LEFT in states and there != reported:
                reported = there
                print(
                    f"{task} keeps serving {there}, while other workers have ended. If {there} was "
                    "killed, restart it, or end this server.",
                    flush=True,
                )


def _names(workers: Sequence[Task], states: Sequence[int], state: int) -> str:
    return ", ".join(str(w) for w, own in zip(workers, states, strict=True) if own == state)


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
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    # TensorFlow's server cannot be shut down, and its threads would keep the process alive.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
