"""Other hosts, reached by ssh: what they have, and how a task is started there.

On each host the same Python runs `tf_config.agent`, in the same directory; it is told what to do
on its standard input, so that no environment shows in a list of processes.
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

from tf_config.commands import Command
from tf_config.errors import ClusterConfigError, shown
from tf_config.hosts import Host

HEARTBEAT_SECONDS = 5.0
# A user's own options come first in --ssh, and ssh takes the first value it is given.
_OPTIONS = (
    "-T",
    "-x",
    "-oBatchMode=yes",
    "-oConnectTimeout=15",
    "-oServerAliveInterval=5",
    "-oServerAliveCountMax=3",
)
_PROBE_SECONDS = 60
# What of this environment is set on other hosts too: settings of the libraries, and no paths.
_PASSED_ON = ("TF_", "KERAS_", "HOROVOD_", "NCCL_", "GLOO_", "OMP_", "MKL_", "XLA_", "PYTHON")


@dataclass(frozen=True)
class Found:
    """What a host has.

    Attributes:
      ports: free ports.
      cores: how many cores a process may use.
      gpus: how many GPUs there are; None if that is not known.
    """

    ports: tuple[int, ...]
    cores: int
    gpus: int | None = None


def connection(host: Host, ssh: Sequence[str]) -> tuple[str, ...]:
    """Returns the command that runs the agent on a host, in this directory, in this Python."""
    python = [sys.executable, "-m", "tf_config.agent"]
    if os.environ.get("PYTHONPATH"):
        python = ["env", f"PYTHONPATH={os.environ['PYTHONPATH']}", *python]
    command = f"cd {shlex.quote(os.getcwd())} && exec {shlex.join(python)}"
    return (*ssh, *_OPTIONS, "--", host.login, command)


def passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of this environment that tasks on other hosts get as well."""
    return {name: value for name, value in environ.items() if name.startswith(_PASSED_ON)}


def probe(
    counts: Mapping[Host, int], ssh: Sequence[str], files: Sequence[str], interface: str | None
) -> dict[Host, Found]:
    """Asks all hosts at once for free ports.

    Args:
      counts: how many ports each host is asked for.
      ssh: the ssh command.
      files: what has to be there.
      interface: the network interface that has to be there, if any.

    Raises:
      ClusterConfigError: if a host cannot be reached, or lacks something.
    """
    with ThreadPoolExecutor(max_workers=32) as pool:
        asked = {
            host: pool.submit(_probe, host, count, ssh, files, interface)
            for host, count in counts.items()
        }
        return {host: answer.result() for host, answer in asked.items()}


def request(command: Command, size: tuple[int, int]) -> bytes:
    """Returns what the agent is told to start a command, with a terminal of that size."""
    message = {"argv": command.argv, "environ": dict(command.environ), "size": size}
    return json.dumps(message).encode() + b"\n"


def _probe(
    host: Host, count: int, ssh: Sequence[str], files: Sequence[str], interface: str | None
) -> Found:
    command = connection(host, ssh)
    try:
        result = subprocess.run(
            command,
            input=json.dumps({"ports": count, "files": files}) + "\n",
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_SECONDS,
            start_new_session=True,  # ssh would ask at the terminal whether a host is to be trusted
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
        answer = json.loads(lines[-1])  # what a login script prints stands before it
    except ValueError:
        raise _unreachable(host, command, lines[-1]) from None
    if answer["missing"]:
        raise ClusterConfigError(
            "The script is at the same place on every host. Received: "
            f"{shown(answer['missing'][0])} is no file on {host.name}, in {shown(os.getcwd())}. "
            "Copy it there, or start in a directory that all hosts share."
        )
    if interface is not None and interface not in answer["interfaces"]:
        raise ClusterConfigError(
            f"--interface names a network interface of every host. Received: {shown(interface)}; "
            f"{host.name} has {', '.join(answer['interfaces'])}. Choose one of these."
        )
    return Found(tuple(answer["ports"]), answer["cores"], answer["gpus"])


class HostUnreachable(ClusterConfigError):
    """Raised when a host cannot be reached.

    Attributes:
      host: its name.
      said: what ssh said.
    """

    def __init__(self, message: str, host: str, said: str):
        super().__init__(message)
        self.host, self.said = host, said


def _unreachable(host: Host, command: Sequence[str], said: str) -> HostUnreachable:
    message = (
        "Each host is reached by ssh without a password, and has this directory and Python "
        f"with this package. Received: {host.login}: {shown(said)}. Try it: "
        f"{shlex.join([*command[:-1], 'cd ' + shlex.quote(os.getcwd())])}; "
        f"python is {Path(sys.executable)}."
    )
    return HostUnreachable(message, host.name, said)
