"""A batch script for Slurm's sbatch."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from tf_config.errors import ClusterConfigError
from tf_config.render.rules import check, check_range, execute
from tf_config.roles import Roles
from tf_config.settings import RESTARTS_VARIABLE

_NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
_TIME = "[0-9]+-[0-9]{1,2}(:[0-9]{1,2}){0,2}|[0-9]+(:[0-9]{1,2}){0,2}"


@dataclass(frozen=True)
class SlurmJob:
    """A job of one task a process, all of them in one `srun`; valid once built.

    Attributes:
      roles: how many tasks of each type.
      program: what each task runs, and its arguments.
      name: what `squeue` shows, and the beginning of the log's name.
      nodes: over how many nodes the tasks are spread; None leaves it to Slurm.
      time: the longest the job may take, as Slurm writes it; None is the partition's default.
      partition: where it is queued, several with commas between them.
      cpus: CPUs of each task.
      gpus: GPUs of each task.
      memory: memory of each node, as Slurm writes it.
      max_restarts: how often all tasks start again after a failure.
      options: more options of `tf-config exec`.
    """

    roles: Roles
    program: tuple[str, ...]
    name: str = "train"
    nodes: int | None = None
    time: str | None = None
    partition: str | None = None
    cpus: int | None = None
    gpus: int | None = None
    memory: str | None = None
    max_restarts: int = 0
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check("A job's name has letters, digits, '.', '_' and '-'", self.name, _NAME, "train")
        if self.nodes is not None:
            check_range("The number of nodes, which have a task each,", self.nodes, self._tasks)
        if self.time is not None:
            check("A time is written as Slurm does", self.time, _TIME, "1-12:00:00")
        if self.partition is not None:
            check(
                "Partitions are names with commas between them",
                self.partition,
                f"{_NAME}(,{_NAME})*",
                "gpu,long",
            )
        if self.memory is not None:
            check("Memory is a number of K, M, G or T", self.memory, "[1-9][0-9]*[KMGT]", "16G")
        if ":" in self.program:
            raise ClusterConfigError(
                "Slurm's srun takes a ':' that stands alone for the end of a command. Received: "
                "one among the program's arguments. Write it as a part of another argument."
            )
        self._command()

    @property
    def _tasks(self) -> int:
        return len(self.roles.tasks)

    def script(self) -> str:
        """Returns the script; `sbatch` starts it."""
        lines = ["#!/bin/bash", *self._directives(), "", "set -euo pipefail", ""]
        lines += self._restarting() if self.max_restarts else [self._command()]
        return "\n".join(lines) + "\n"

    def _directives(self) -> list[str]:
        directives = {
            "job-name": self.name,
            "output": "%x-%j.log",
            "ntasks": self._tasks,
            "nodes": self.nodes,
            "cpus-per-task": self.cpus,
            "gpus-per-task": self.gpus,
            "mem": self.memory,
            "time": self.time,
            "partition": self.partition,
        }
        return [f"#SBATCH --{key}={value}" for key, value in directives.items() if value]

    def _restarting(self) -> list[str]:
        # Each srun is a step of its own, and has other ports than the one that failed.
        return [
            f"for ((restart = 0; restart <= {self.max_restarts}; restart++)); do",
            f"  export {RESTARTS_VARIABLE}=$restart",
            "  code=0",
            f"  {self._command()} || code=$?",
            "  if ((code == 0)); then break; fi",
            f'  echo "exit code $code at start $restart; at most {self.max_restarts} restarts" >&2',
            "done",
            'exit "$code"',
        ]

    def _command(self) -> str:
        srun = ["srun", "--kill-on-bad-exit=1"]
        if self.cpus is not None:
            # Since Slurm 22.05 a step does not take it over from its job.
            srun.append(f"--cpus-per-task={self.cpus}")
        options = ["--ps", str(self.roles.ps)] if self.roles.ps else []
        options += ["--chief"] * self.roles.chief + ["--evaluator"] * self.roles.evaluator
        return shlex.join([*srun, *execute("slurm", [*options, *self.options], self.program)])
