"""What is started for each task: program, arguments and environment. Starts nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tf_config.cluster import VARIABLE, ClusterSpec, Task, TFConfig
from tf_config.errors import ClusterConfigError, shown

START_TIMEOUT_VARIABLE = "KERAS_STRATEGIES_START_TIMEOUT"
RESTARTS_VARIABLE = "KERAS_STRATEGIES_RESTARTS"
# What TensorFlow and OpenMP read; both would else take all cores in every process.
THREAD_VARIABLES = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")


@dataclass(frozen=True)
class Command:
    """What is started for one task.

    Attributes:
      task: the task.
      argv: the program and its arguments.
      environ: its whole environment.
    """

    task: Task
    argv: tuple[str, ...]
    environ: Mapping[str, str]


def argv(program: Sequence[str]) -> tuple[str, ...]:
    """Returns what to start for a program and its arguments; `x.py` runs in this Python.

    Raises:
      ClusterConfigError: if it is a script that does not exist.
    """
    if not program[0].endswith(".py"):
        return tuple(program)
    if not Path(program[0]).is_file():
        raise ClusterConfigError(
            f"A job runs a program. Received: {shown(program[0])}, which is no file here. "
            "Correct the path."
        )
    return (sys.executable, *program)


def command(
    config: TFConfig,
    what: tuple[str, ...],
    environ: Mapping[str, str],
    settings: Mapping[str, str | None],
) -> Command:
    """Returns the command of one task: `what` in `environ`, with the task's TF_CONFIG.

    Args:
      config: the task's configuration.
      what: the program and its arguments.
      environ: what the task inherits. TensorFlow's notes are off (TF_CPP_MIN_LOG_LEVEL=1)
        unless it says otherwise.
      settings: variables that win over `environ`; None leaves one as it is.
    """
    defaults = {"TF_CPP_MIN_LOG_LEVEL": "1", "PYTHONUNBUFFERED": "1"}
    chosen = {name: value for name, value in settings.items() if value is not None}
    return Command(config.task, what, {**defaults, **environ, **chosen, VARIABLE: config.to_json()})


def plan(
    cluster: ClusterSpec,
    program: Sequence[str],
    environ: Mapping[str, str],
    settings: Mapping[str, str | None],
) -> list[Command]:
    """Returns the commands of all tasks, all of them on this machine.

    Args:
      cluster: the tasks.
      program: what each runs, and its arguments.
      environ: what each inherits.
      settings: variables that win over `environ`; None leaves one as it is.

    Raises:
      ClusterConfigError: if the program is a script that does not exist.
    """
    what = argv(program)
    shares = dict.fromkeys(THREAD_VARIABLES, str(max(cores() // len(cluster.addresses), 1)))
    shared = {**shares, **environ}
    return [command(TFConfig(cluster, task), what, shared, settings) for task in cluster.addresses]


def cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
