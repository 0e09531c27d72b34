"""Other hosts, reached by ssh or a scheduler: their resources, and the start of tasks there.

On each host, `tf_config.launcher.agent` runs with the same Python in the same directory. It gets
its request through standard input, so that the environment is not visible in a list of processes.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tf_config.cluster import Task
from tf_config.errors import ClusterConfigError, quoted
from tf_config.hosts import Host
from tf_config.launcher.commands import Command
from tf_config.launcher.metrics import TaskMetrics
from tf_config.launcher.progress_file import Report

HEARTBEAT_SECONDS = 5.0
# The user's options in --ssh come first and take precedence, because ssh uses the first value.
_OPTIONS = (
    "-T",
    "-x",
    "-oBatchMode=yes",
    "-oConnectTimeout=15",
    "-oServerAliveInterval=5",
    "-oServerAliveCountMax=3",
)
_PROBE_SECONDS = 60
# Commands of batch schedulers, which do not take ssh's options. Some of them pass the words to a
# shell, so no word may need quotes: the directory is in the agent's request instead.
_OF_SCHEDULERS = ("qrsh", "blaunch")
# Prefixes of the variables that are also set on other hosts: settings of libraries, not paths.
_PASSED_ON = ("TF_", "KERAS_", "HOROVOD_", "NCCL_", "GLOO_", "OMP_", "MKL_", "XLA_", "PYTHON")


@dataclass(frozen=True)
class HostResources:
    """The resources of a host.

    Attributes:
      ports: free ports.
      cores: the number of cores that a process may use.
      gpus: the number of GPUs; None if it is unknown.
    """

    ports: tuple[int, ...]
    cores: int
    gpus: int | None = None


def ssh_command(host: Host, ssh: Sequence[str]) -> tuple[str, ...]:
    """Returns the command that runs the agent on a host, in this directory with this Python.

    Raises:
      ClusterConfigError: if the command of a batch scheduler cannot pass on a path.
    """
    python = [sys.executable, "-m", "tf_config.launcher.agent"]
    if os.environ.get("PYTHONPATH"):
        python = ["env", f"PYTHONPATH={os.environ['PYTHONPATH']}", *python]
    if Path(ssh[0]).name in _OF_SCHEDULERS:
        special = next((word for word in python if shlex.quote(word) != word), None)
        if special is not None:
            raise ClusterConfigError(
                f"Under {ssh[0]}, the paths of Python and of PYTHONPATH cannot have characters "
                f"that are special in a shell. Received: {quoted(special)}. Use --ssh ssh, or "
                "other paths."
            )
        return (*ssh, host.name, *python)
    command = f"cd {shlex.quote(os.getcwd())} && exec {shlex.join(python)}"
    return (*ssh, *_OPTIONS, "--", host.login, command)


def forwarded_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of this environment that tasks on other hosts also get."""
    return {name: value for name, value in environ.items() if name.startswith(_PASSED_ON)}


def probe(
    counts: Mapping[Host, int], ssh: Sequence[str], files: Sequence[str], interface: str | None
) -> dict[Host, HostResources]:
    """Queries all hosts in parallel; returns their resources.

    Args:
      counts: the number of free ports to find on each host.
      ssh: the ssh command.
      files: the files that each host must have.
      interface: the network interface that each host must have, if any.

    Raises:
      ClusterConfigError: if a host cannot be reached, or lacks a file or the interface.
    """
    with ThreadPoolExecutor(max_workers=32) as pool:
        answers = {
            host: pool.submit(_probe, host, count, ssh, files, interface)
            for host, count in counts.items()
        }
        return {host: answer.result() for host, answer in answers.items()}


def request(command: Command, size: tuple[int, int]) -> bytes:
    """Returns the agent's request to start a command with a terminal of the given size."""
    message = {
        "argv": command.argv,
        "environ": dict(command.environ),
        "size": size,
        "directory": os.getcwd(),
    }
    return json.dumps(message).encode() + b"\n"


def metrics_of(task: Task, message: bytes, previous: TaskMetrics) -> TaskMetrics:
    """Returns what an agent has reported of its task: the memory, and the task's own report.

    >>> metrics_of(Task("worker", 1), b"[4096, null]", None)
    TaskMetrics(task=Task(type='worker', index=1), memory=4096, report=None)

    Args:
      task: the task.
      message: the agent's message.
      previous: the result if the message cannot be read, for example of another version's agent.
    """
    try:
        memory, text = json.loads(message)
        return TaskMetrics(task, int(memory), None if text is None else Report.from_json(text))
    except (TypeError, ValueError):
        return previous


def _probe(
    host: Host, count: int, ssh: Sequence[str], files: Sequence[str], interface: str | None
) -> HostResources:
    command = ssh_command(host, ssh)
    try:
        result = subprocess.run(
            command,
            input=json.dumps({"ports": count, "files": files, "directory": os.getcwd()}) + "\n",
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_SECONDS,
            start_new_session=True,  # otherwise ssh would ask at the terminal about unknown hosts
        )
    except subprocess.TimeoutExpired:
        raise _unreachable(host, command, f"no answer in {_PROBE_SECONDS} s") from None
    except OSError as error:
        raise _unreachable(host, command, f"{command[0]}: {error.strerror}") from None
    lines = result.stdout.splitlines()
    if result.returncode != 0 or not lines:
        said = (result.stderr.strip().splitlines() or [f"exit code {result.returncode}"])[-1]
        raise _unreachable(host, command, said)
    try:
        answer = json.loads(lines[-1])  # earlier lines come from a login script
    except ValueError:
        raise _unreachable(host, command, lines[-1]) from None
    if answer["missing"]:
        raise ClusterConfigError(
            "The script must be at the same path on every host. Received: "
            f"{quoted(answer['missing'][0])}, which is not a file on {host.name} in "
            f"{quoted(os.getcwd())}. Copy it there, or start the job in a directory that all hosts "
            "share."
        )
    if interface is not None and interface not in answer["interfaces"]:
        raise ClusterConfigError(
            "--interface must name a network interface of every host. Received: "
            f"{quoted(interface)}; {host.name} has {', '.join(answer['interfaces'])}. Choose one "
            "of these."
        )
    return HostResources(tuple(answer["ports"]), answer["cores"], answer["gpus"])


class HostUnreachable(ClusterConfigError):
    """Raised when a host cannot be reached.

    Attributes:
      host: the host's name.
      said: the error of ssh.
    """

    def __init__(self, message: str, host: str, said: str):
        super().__init__(message)
        self.host, self.said = host, said


def _unreachable(host: Host, command: Sequence[str], said: str) -> HostUnreachable:
    name = Path(command[0]).name
    if name in _OF_SCHEDULERS:
        attempt = shlex.join([*command[: command.index(host.name) + 1], "true"])
    else:
        attempt = shlex.join([*command[:-1], "cd " + shlex.quote(os.getcwd())])
    message = (
        f"Each host must be reachable by {name} without a password, and must have this directory "
        f"and this Python with this package. Received: {host.login}: {quoted(said)}. Try: "
        f"{attempt}; python is {Path(sys.executable)}."
    )
    return HostUnreachable(message, host.name, said)
