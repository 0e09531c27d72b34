"""A batch script for Slurm."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from tf_config.errors import ClusterConfigError, quoted
from tf_config.launcher.settings import RESTARTS_VARIABLE
from tf_config.render.rules import check, check_range, execute
from tf_config.roles import Roles

_NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
_GRES = r"[A-Za-z0-9_.:=-]+"
_LINE = r"[^\r\n\0]*\S[^\r\n\0]*"
_SHORT = {
    "A": "account",
    "J": "job-name",
    "N": "nodes",
    "c": "cpus-per-task",
    "n": "ntasks",
    "o": "output",
    "p": "partition",
    "t": "time",
}
_TIME = "[0-9]+-[0-9]{1,2}(:[0-9]{1,2}){0,2}|[0-9]+(:[0-9]{1,2}){0,2}"


@dataclass(frozen=True)
class SlurmJob:
    """A job whose tasks are all started by one `srun`; validated on construction.

    Attributes:
      roles: the number of tasks of each type.
      program: the program that each task runs, and its arguments.
      name: the name of the job in `squeue`, and the prefix of the log's name.
      nodes: the number of nodes to which the tasks are distributed; None leaves it to Slurm.
      time: the time limit of the job, in Slurm's notation; None for the partition's default.
      partition: the partition to submit the job to, or several partitions separated by commas.
      account: the account to charge.
      tasks_per_node: the number of tasks on each node; None leaves it to Slurm.
      gres: the generic resources of each node, in Slurm's notation.
      cpus: the number of CPUs of each task.
      gpus: the number of GPUs of each task.
      memory: the memory of each node, in Slurm's notation.
      max_restarts: the maximum number of restarts of all tasks after a failure.
      options: further options of `tf-config exec`.
      setup: shell commands that run first, such as `module load TensorFlow`.
      directives: further options of sbatch, such as `--constraint=rome`.
      own: the command that starts this installation of `tf-config`; ignored if `setup` is given.
    """

    roles: Roles
    program: tuple[str, ...]
    name: str = "train"
    nodes: int | None = None
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    tasks_per_node: int | None = None
    gres: str | None = None
    cpus: int | None = None
    gpus: int | None = None
    memory: str | None = None
    max_restarts: int = 0
    options: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    directives: tuple[str, ...] = ()
    own: tuple[str, ...] = ("tf-config",)

    def __post_init__(self) -> None:
        characters = "must consist of letters, digits, '.', '_' and '-'"
        check(f"A job's name {characters}", self.name, _NAME, "train")
        if self.nodes is not None:
            check_range("The number of nodes, each with a task,", self.nodes, self._tasks)
        if self.time is not None:
            check("A time must be in Slurm's format", self.time, _TIME, "1-12:00:00")
        if self.partition is not None:
            check(
                "Partitions must be names separated by commas",
                self.partition,
                f"{_NAME}(,{_NAME})*",
                "gpu,long",
            )
        if self.memory is not None:
            rule = "Memory must be a number, with an optional unit: K, M (the default), G or T"
            check(rule, self.memory, "[1-9][0-9]*[KMGT]?", "16G")
        if self.account is not None:
            check(f"An account {characters}", self.account, _NAME, "p_number_crunch")
        if self.gres is not None:
            rule = "Generic resources of a node must be in Slurm's format"
            check(rule, self.gres, f"{_GRES}(,{_GRES})*", "gpu:a100:4")
        self._check_tasks_per_node()
        for line in self.setup:
            check("A shell command must be one line", line, _LINE, "module load TensorFlow")
        for directive in self.directives:
            self._check_directive(directive)
        if ":" in self.program:
            raise ClusterConfigError(
                "An argument of the program cannot be ':', with which srun separates commands. "
                "Received: such an argument. Make it a part of another argument."
            )
        self._command()

    def _check_tasks_per_node(self) -> None:
        each = self.tasks_per_node
        if each is None:
            return
        check_range("The number of tasks of a node", each, self._tasks)
        if self.nodes is not None and self.nodes * each < self._tasks:
            raise ClusterConfigError(
                f"The nodes must be able to run all tasks. Received: {self._tasks} tasks, "
                f"{self.nodes} nodes with {each} each. Request more nodes, or more tasks per node."
            )

    def _check_directive(self, directive: str) -> None:
        rule = "An option of sbatch must begin with '-', and must be one line"
        check(rule, directive, f"-{_LINE}", "--constraint=rome")
        if _option(directive) in self._values().keys() - {"output"}:
            raise ClusterConfigError(
                f"An option of sbatch cannot be given twice. Received: {quoted(directive)}, which "
                "tf-config writes itself. Use the corresponding option of 'tf-config render slurm'."
            )

    @property
    def _tasks(self) -> int:
        return len(self.roles.tasks)

    def script(self) -> str:
        """Returns the script for `sbatch`."""
        # Not `set -u` for the setup commands: environment modules read unset variables.
        start = ["set -eo pipefail", *self.setup, "set -u"] if self.setup else ["set -euo pipefail"]
        lines = ["#!/bin/bash", *self._directives(), "", *start, ""]
        lines += self._restarting() if self.max_restarts else [self._command()]
        return "\n".join(lines) + "\n"

    def _directives(self) -> list[str]:
        overridden = {_option(directive) for directive in self.directives}
        values = {key: value for key, value in self._values().items() if key not in overridden}
        lines = [f"--{key}={value}" for key, value in values.items() if value]
        return [f"#SBATCH {line}" for line in [*lines, *self.directives]]

    def _values(self) -> dict[str, object]:
        return {
            "job-name": self.name,
            "output": "%x-%j.log",
            "ntasks": self._tasks,
            "nodes": self.nodes,
            "ntasks-per-node": self.tasks_per_node,
            "cpus-per-task": self.cpus,
            "gpus-per-task": self.gpus,
            "gres": self.gres,
            "mem": self.memory,
            "time": self.time,
            "partition": self.partition,
            "account": self.account,
        }

    def _restarting(self) -> list[str]:
        # Each srun is a separate step, whose ports differ from those of the step that failed.
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
        srun = ["srun", "--kill-on-bad-exit=1", "--label"]
        if self.cpus is not None:
            # Since Slurm 22.05, a step does not inherit this option from its job.
            srun.append(f"--cpus-per-task={self.cpus}")
        options = ["--ps", str(self.roles.ps)] if self.roles.ps else []
        options += ["--chief"] * self.roles.chief + ["--evaluator"] * self.roles.evaluator
        command, *words = execute("slurm", [*options, *self.options], self.program)
        # The setup commands may activate an environment with a different `tf-config`.
        own = (command,) if self.setup else self.own
        return shlex.join([*srun, *own, *words])


def _option(directive: str) -> str:
    """Returns the long name of an sbatch option.

    >>> _option("--output=%j.out")
    'output'
    >>> _option("-o %j.out")
    'output'
    """
    if directive.startswith("--"):
        return directive[2:].replace("=", " ").split(" ")[0]
    return _SHORT.get(directive[1:2], "")
