"""The hosts that a batch scheduler allocated to a job, for `tf-config run --allocation`.

Variables and files: "PBS Professional User's Guide" (PBS_NODEFILE); "IBM Spectrum LSF",
"Environment variables" (LSB_MCPU_HOSTS); sge_pe(5) (PE_HOSTFILE).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tf_config.errors import ClusterConfigError, quoted
from tf_config.hosts import Host, parse_hosts


@dataclass(frozen=True)
class Allocation:
    """The hosts that a scheduler allocated to a job.

    Attributes:
      hosts: the hosts, each with the number of slots that the job has there.
      shell: the command that starts a program on a host.
    """

    hosts: list[Host]
    shell: tuple[str, ...]


@dataclass(frozen=True)
class _Scheduler:
    """A scheduler that starts a job's script on the first host.

    Attributes:
      name: the scheduler's name in messages.
      variable: the environment variable with the hosts, or with the path of a file that lists them.
      items: returns the hosts as `name` or `name:slots`, given the text of the variable or file.
      is_file: whether the value of the variable is a path.
      shell: the command that starts a program on another host of the job.
    """

    name: str
    variable: str
    items: Callable[[str], list[str]]
    is_file: bool
    shell: tuple[str, ...]


def _pairs(text: str) -> list[str]:
    words = text.split()
    return [f"{host}:{slots}" for host, slots in zip(words[::2], words[1::2], strict=True)]


def _columns(text: str) -> list[str]:
    lines = [line.split() for line in text.splitlines() if line.strip()]
    return [f"{host}:{slots}" for host, slots, *_ in lines]


_SCHEDULERS = (
    # A line for each slot. Not PBS's pbs_tmrsh, which does not forward the standard input.
    _Scheduler("PBS", "PBS_NODEFILE", str.split, True, ("ssh",)),
    _Scheduler("LSF", "LSB_MCPU_HOSTS", _pairs, False, ("blaunch",)),
    _Scheduler("Grid Engine", "PE_HOSTFILE", _columns, True, ("qrsh", "-inherit")),
)


def find_allocation(environ: Mapping[str, str]) -> Allocation:
    """Returns the hosts of the batch job that this process belongs to.

    >>> find_allocation({"LSB_MCPU_HOSTS": "node1 2 node2 4"}).hosts[1]
    Host(name='node2', slots=4, user=None)

    Args:
      environ: the environment variables of a job's script.

    Raises:
      ClusterConfigError: if the process is not in a batch job, or the list of hosts cannot be read.
    """
    for scheduler in _SCHEDULERS:
        value = environ.get(scheduler.variable)
        if value:
            return Allocation(_hosts(scheduler, value), scheduler.shell)
    is_slurm = bool(environ.get("SLURM_JOB_ID"))
    names = ", ".join(f"{scheduler.name} ({scheduler.variable})" for scheduler in _SCHEDULERS)
    raise ClusterConfigError(
        f"--allocation requires a job of one of these schedulers: {names}. Received: "
        + (
            "a job of Slurm. Start the tasks with 'srun tf-config exec -- ...'."
            if is_slurm
            else "none of these variables is set. Name the hosts with --hosts."
        )
    )


def _hosts(scheduler: _Scheduler, value: str) -> list[Host]:
    received = f"{scheduler.variable}={quoted(value)}"
    try:
        text = Path(value).read_text() if scheduler.is_file else value
        items = scheduler.items(text)
    except OSError as error:
        raise ClusterConfigError(
            f"{scheduler.variable} must name a readable file with the job's hosts. Received: "
            f"{received} ({error.strerror}). Start tf-config in the job's script, "
            "on the first host."
        ) from None
    except ValueError:
        items = []
    if not items:
        raise ClusterConfigError(
            f"{scheduler.name} must name the job's hosts and their slots. Received: {received}. Do "
            "not change the variable; under Grid Engine, request a parallel environment."
        )
    return parse_hosts(",".join(items))
