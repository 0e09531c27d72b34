"""The participants of a rendezvous, their reports, and the cluster that the reports form."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tf_config.address import Address
from tf_config.cluster import ClusterSpec, Task
from tf_config.errors import ClusterConfigError, quoted
from tf_config.roles import Roles


@dataclass(frozen=True)
class Participant:
    """A process of a job and its rank among all tasks; validated on construction.

    >>> str(Participant(Roles(workers=2, ps=1), 2).task)
    'ps 0'

    Attributes:
      roles: the number of tasks of each type.
      rank: the rank of the process among all tasks, from 0.
      leader: the rank of the process that leads the rendezvous.
    """

    roles: Roles
    rank: int
    leader: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.rank < len(self.roles.tasks):
            raise ClusterConfigError(
                f"The rank must be from 0 to {len(self.roles.tasks) - 1} in a job of "
                f"{len(self.roles.tasks)} processes. Received: {quoted(self.rank)}. Correct the "
                "rank, or the number of tasks."
            )

    @property
    def leads(self) -> bool:
        """Whether this process leads the rendezvous."""
        return self.rank == self.leader

    @property
    def leading_task(self) -> Task:
        """The task that leads the rendezvous."""
        return self.roles.tasks[self.leader]

    @property
    def followers(self) -> list[int]:
        """The ranks of all processes except the leader."""
        return [rank for rank in range(len(self.roles.tasks)) if rank != self.leader]

    @property
    def task(self) -> Task:
        """The task of this process."""
        return self.roles.tasks[self.rank]


@dataclass(frozen=True)
class JoinRequest:
    """The report that a process sends to the leader of the rendezvous.

    Attributes:
      rank: the rank of the process.
      tasks: the tasks of the job that the process was started with.
      host: the host name or IP address at which the others reach the process.
      port: a free port on that host, reserved until the rendezvous ends.
      token: a random text that identifies the process.
    """

    rank: int
    tasks: tuple[str, ...]
    host: str
    port: int
    token: str

    @classmethod
    def of(cls, participant: Participant, host: str, port: int) -> JoinRequest:
        """Returns the report of a process, with a new token."""
        tasks = tuple(str(task) for task in participant.roles.tasks)
        return cls(participant.rank, tasks, host, port, secrets.token_hex(8))

    @classmethod
    def from_dict(cls, values: Any) -> JoinRequest:
        """Returns the report that `to_dict` has converted to a dictionary.

        Raises:
          ValueError: if `values` is not such a dictionary.
        """
        try:
            report = cls(
                int(values["rank"]),
                tuple(map(str, values["tasks"])),
                str(values["host"]),
                int(values["port"]),
                str(values["token"]),
            )
        except (KeyError, TypeError, OverflowError):
            raise ValueError("no report") from None
        Address.parse(str(Address(report.host, report.port)))
        return report

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as a dictionary that can be written as JSON."""
        return {**vars(self), "tasks": list(self.tasks)}


@dataclass
class Roster:
    """The reports that the leader has collected so far.

    Attributes:
      participant: the leader.
      reports: the report of each process, by rank.
    """

    participant: Participant
    reports: dict[int, JoinRequest] = field(default_factory=dict)

    def add(self, report: JoinRequest) -> None:
        """Adds a report.

        Raises:
          ClusterConfigError: if the report contradicts the others.
        """
        tasks = self.participant.roles.tasks
        if report.tasks != tuple(str(task) for task in tasks):
            raise ClusterConfigError(
                "All processes of a job must be started with the same tasks. Received: "
                f"{len(tasks)} ({quoted(', '.join(map(str, tasks)))}) in the first process, "
                f"{len(report.tasks)} ({quoted(', '.join(report.tasks))}) in one on {report.host}. "
                "Start all processes with the same options."
            )
        if not 0 <= report.rank < len(tasks):
            raise ClusterConfigError(
                f"The rank must be from 0 to {len(tasks) - 1} in a job of {len(tasks)} processes. "
                f"Received: {quoted(report.rank)} from {quoted(report.host)}. Correct the rank."
            )
        # The same report is added each time its file is read; another process has another token.
        other = self.reports.get(report.rank)
        if other is not None and other.token != report.token:
            raise ClusterConfigError(
                f"Two processes cannot be the same task. Received: two processes for "
                f"{tasks[report.rank]}, on {other.host} and {report.host}. Use a different rank "
                "for each process, and a different rendezvous for each job."
            )
        self.reports[report.rank] = report

    @property
    def missing(self) -> list[Task]:
        """The tasks that have not reported yet."""
        return [
            t for rank, t in enumerate(self.participant.roles.tasks) if rank not in self.reports
        ]

    @property
    def progress(self) -> str:
        """A message that lists the missing tasks."""
        total = len(self.participant.roles.tasks)
        names = ", ".join(map(str, self.missing[:8])) + ("..." if len(self.missing) > 8 else "")
        return f"waiting for {names} ({total - len(self.missing)} of {total} have connected)"

    def timeout_error(self, seconds: float) -> ClusterConfigError:
        """Returns the error to raise if tasks are missing after the timeout."""
        return ClusterConfigError(
            f"All tasks must connect to the rendezvous within {seconds:g} s. Received: still "
            f"{self.progress}. Start the missing tasks, or raise --start-timeout."
        )

    def answer(self) -> dict[str, Any]:
        """Returns the answer that all processes receive once all have reported."""
        tasks = self.participant.roles.tasks
        addresses = {
            tasks[rank]: Address(report.host, report.port)
            for rank, report in self.reports.items()
            if tasks[rank].type != "evaluator"
        }
        tokens = [report.token for report in self.reports.values()]
        return {"cluster": ClusterSpec(addresses).to_dict(), "tokens": tokens}


def cluster_of(answer: Mapping[str, Any]) -> ClusterSpec:
    """Returns the cluster in an answer of the leader.

    Raises:
      ClusterConfigError: if the answer is an error.
    """
    if "error" in answer:
        raise ClusterConfigError(str(answer["error"]))
    return ClusterSpec.from_dict(answer["cluster"])
