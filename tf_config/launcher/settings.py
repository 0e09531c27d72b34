"""The settings of a task's process in addition to TF_CONFIG, and their origins.

An argument takes precedence over the environment, and the environment over the default.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tf_config.cluster import VARIABLE, Task
from tf_config.errors import ClusterConfigError, quoted
from tf_config.secret import SECRET_VARIABLE

START_TIMEOUT_VARIABLE = "KERAS_STRATEGIES_START_TIMEOUT"
START_TIMEOUT_SECONDS = 300.0
STEP_TIMEOUT_VARIABLE = "KERAS_STRATEGIES_STEP_TIMEOUT"
RESTARTS_VARIABLE = "KERAS_STRATEGIES_RESTARTS"
# "1": this task was restarted alone, while the others continued.
REJOINS_VARIABLE = "KERAS_STRATEGIES_REJOINS"
# The seconds between two saves of a parameter server's state, with which the launcher restarts a
# lost server alone; 0 or nothing: the servers save nothing, and the loss of one ends the job.
SERVER_SAVES_VARIABLE = "KERAS_STRATEGIES_SERVER_SAVES"
SERVER_SAVES_SECONDS = 30.0
GPU_VARIABLE = "CUDA_VISIBLE_DEVICES"
OWN_GPUS_VARIABLE = "KERAS_STRATEGIES_OWN_GPUS"  # "1": no other task of the host sees its GPUs
# Read by TensorFlow and OpenMP, which otherwise use all cores in every process.
THREAD_VARIABLES = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
# Read by Horovod's Gloo, NCCL and Open MPI.
INTERFACE_VARIABLES = (
    "HOROVOD_GLOO_IFACE",
    "NCCL_SOCKET_IFNAME",
    "OMPI_MCA_btl_tcp_if_include",
    "OMPI_MCA_oob_tcp_if_include",
)
# Read by the C library, which then uses huge pages for large arrays. Embedding lookups read
# scattered rows; with small pages, finding the page takes the processor as long as reading the row.
_MALLOC_VARIABLE, _HUGE_PAGES = "GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"
_NO_GPU = "-1"
_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
# Variables that differ in each task, depending on its place in the cluster.
RENDEZVOUS_VARIABLE = "KERAS_STRATEGIES_RENDEZVOUS"
# "whole": this process shares its output with others, and does not write to a terminal.
BARS_VARIABLE = "KERAS_STRATEGIES_BARS"
WHOLE_BARS = "whole"
SIDECAR_VARIABLE = "KERAS_STRATEGIES_SIDECAR"
PROGRESS_VARIABLE = "KERAS_STRATEGIES_PROGRESS"  # the file to which a process writes its progress
# "1": the process also writes its numbers there, for a page of metrics.
METRICS_VARIABLE = "KERAS_STRATEGIES_METRICS"
_SET_PER_TASK = (
    VARIABLE,
    RENDEZVOUS_VARIABLE,
    SIDECAR_VARIABLE,
    PROGRESS_VARIABLE,
    METRICS_VARIABLE,
    REJOINS_VARIABLE,
    *("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    *("HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE", "HOROVOD_HOSTNAME"),
    *("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
)
_USES_GPU = ("chief", "worker", "evaluator")


class Setting(NamedTuple):
    """A variable of a task's environment, and the origin of its value."""

    variable: str
    value: str
    origin: str  # "argument", "environment" or "default"


@dataclass(frozen=True)
class LaunchOptions:
    """The settings given as arguments of a command; None leaves a setting to the environment.

    Attributes:
      start_timeout: the number of seconds to wait for the other tasks at the start.
      step_timeout: the number of seconds to wait for the other tasks within a step.
      threads: the number of threads of TensorFlow and OpenMP in each task.
      gpus: the number of GPUs of each chief, worker and evaluator.
      interface: the network interface of Horovod, NCCL and MPI.
      variables: further environment variables for all tasks.
      is_verbose: whether to show TensorFlow's notes.
      has_metrics: whether the tasks report their numbers, for a page of metrics.
      server_saves: the number of seconds between two saves of a parameter server's state; 0 for no
        saves.
      restarts_servers: whether a lost parameter server may be restarted alone.
    """

    start_timeout: float | None = None
    step_timeout: float | None = None
    threads: int | None = None
    gpus: int | None = None
    interface: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    is_verbose: bool = False
    has_metrics: bool = False
    server_saves: float | None = None
    restarts_servers: bool = False

    def __post_init__(self) -> None:
        for name in self.variables:
            if not _NAME.fullmatch(name):
                raise ClusterConfigError(
                    "The name of a variable must consist of letters, digits and '_', and cannot "
                    f"begin with a digit. Received: {quoted(name)}. Correct it: --env NAME=VALUE."
                )
            if name == SECRET_VARIABLE:
                raise ClusterConfigError(
                    "A secret cannot be passed on the command line, which all users of a host can "
                    f"read. Received: --env {name}. Export the variable: it is forwarded "
                    "automatically."
                )
            if name in _SET_PER_TASK:
                raise ClusterConfigError(
                    f"{name} cannot be set with --env, because tf-config sets it for each task. "
                    f"Received: --env {name}=... Omit it."
                )


@dataclass(frozen=True)
class LocalTasks:
    """A task and the other tasks on its host.

    Attributes:
      task: the task.
      together: all tasks on its host, in the order of the cluster.
      cores: the number of cores that each task may use by default.
      gpus: the number of GPUs of the host; None if it is unknown.
    """

    task: Task
    together: tuple[Task, ...]
    cores: int
    gpus: int | None = None


def resolve_settings(
    request: LaunchOptions,
    environ: Mapping[str, str],
    place: LocalTasks,
    restart: int | None = None,
) -> list[Setting]:
    """Returns the settings of one task.

    Args:
      request: the settings given as arguments.
      environ: the environment that the task inherits.
      place: the task and its neighbors.
      restart: the number of restarts so far; None leaves it to the environment.

    Raises:
      ClusterConfigError: if the GPUs do not suffice.
    """
    # If a variable has two values, the later one takes precedence.
    arguments = {
        START_TIMEOUT_VARIABLE: _seconds(request.start_timeout),
        STEP_TIMEOUT_VARIABLE: _seconds(request.step_timeout),
        **dict.fromkeys(THREAD_VARIABLES, _text(request.threads)),
        **({} if request.interface is None else _interface(request.interface)),
        RESTARTS_VARIABLE: _text(restart),
        METRICS_VARIABLE: "1" if request.has_metrics else None,
        SERVER_SAVES_VARIABLE: _seconds(request.server_saves),
        **request.variables,
        # Chosen among the GPUs that --env CUDA_VISIBLE_DEVICES or the environment names.
        **(
            {}
            if request.gpus is None
            else _own_gpus(request.gpus, {**environ, **request.variables}, place)
        ),
    }
    defaults = {
        START_TIMEOUT_VARIABLE: f"{START_TIMEOUT_SECONDS:g}",
        **dict.fromkeys(THREAD_VARIABLES, str(place.cores)),
        RESTARTS_VARIABLE: "0",
        **(
            {SERVER_SAVES_VARIABLE: f"{SERVER_SAVES_SECONDS:g}"} if request.restarts_servers else {}
        ),
        "TF_CPP_MIN_LOG_LEVEL": "0" if request.is_verbose else "1",
        "PYTHONUNBUFFERED": "1",
        # If a library crashes, Python prints which line of the script was running.
        "PYTHONFAULTHANDLER": "1",
        _MALLOC_VARIABLE: _HUGE_PAGES,
    }
    settings = []
    for variable in {**defaults, **arguments}:
        value = arguments.get(variable)
        if value is not None:
            settings.append(Setting(variable, value, "argument"))
        elif variable in environ:
            settings.append(Setting(variable, environ[variable], "environment"))
        elif variable in defaults:
            settings.append(Setting(variable, defaults[variable], "default"))
    return settings


def server_saves_seconds(environ: Mapping[str, str] = os.environ) -> float | None:
    """Returns the seconds between two saves of a parameter server's state; None if none is saved.

    >>> server_saves_seconds({}), server_saves_seconds({"KERAS_STRATEGIES_SERVER_SAVES": "5"})
    (None, 5.0)

    Raises:
      ClusterConfigError: if the variable is not a number of seconds.
    """
    text = environ.get(SERVER_SAVES_VARIABLE, "0")
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ClusterConfigError(
            f"{SERVER_SAVES_VARIABLE} must be a number of seconds, or 0 for no saves. Received: "
            f"{quoted(text)}. Correct it."
        )
    return seconds or None


def _interface(name: str) -> dict[str, str | None]:
    return dict.fromkeys(INTERFACE_VARIABLES, name)


def _own_gpus(count: int, environ: Mapping[str, str], place: LocalTasks) -> dict[str, str | None]:
    return {GPU_VARIABLE: _gpus(count, environ, place), OWN_GPUS_VARIABLE: "1"}


def _gpus(count: int, environ: Mapping[str, str], place: LocalTasks) -> str:
    """Returns the numbers of one task's GPUs: the next ones of its host."""
    if place.task.type not in _USES_GPU or count == 0:
        return _NO_GPU
    computing = [task for task in place.together if task.type in _USES_GPU]
    first = computing.index(place.task) * count
    inherited = environ.get(GPU_VARIABLE)
    if inherited is None and place.gpus is not None and first + count > place.gpus:
        raise ClusterConfigError(
            f"Each worker must have its own GPUs. Received: {len(computing)} workers with {count} "
            f"each on a host with {place.gpus} NVIDIA GPUs. Request fewer, or omit "
            "--gpus-per-worker."
        )
    if inherited is None:
        return ",".join(str(number) for number in range(first, first + count))
    devices = [device.strip() for device in inherited.split(",") if device.strip()]
    if first + count > len(devices):
        raise ClusterConfigError(
            f"Each worker must have its own GPUs. Received: {len(computing)} workers with {count} "
            f"each on this host, and {GPU_VARIABLE}={quoted(inherited)}. Request fewer, or unset "
            "the variable."
        )
    return ",".join(devices[first : first + count])


def _seconds(number: float | None) -> str | None:
    return None if number is None else f"{number:g}"


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)
