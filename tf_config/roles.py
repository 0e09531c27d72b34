"""The number of tasks of each type in a job."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tf_config.cluster import ClusterSpec, Task, TFConfig
from tf_config.errors import ClusterConfigError, quoted

# More than any real cluster has, but few enough to build the list of all tasks.
MOST_TASKS = 99_999


@dataclass(frozen=True)
class Roles:
    """The number of tasks of each type, validated on construction.

    >>> [str(task) for task in Roles(workers=2, ps=1, chief=True).tasks]
    ['chief 0', 'worker 0', 'worker 1', 'ps 0']

    Attributes:
      workers: the number of workers; at least 1, or 0 with a chief.
      ps: the number of parameter servers.
      chief: whether the job has a chief, the first of the tasks that train.
      evaluator: whether the job has an evaluator, which is not part of the cluster.
    """

    workers: int = 1
    ps: int = 0
    chief: bool = False
    evaluator: bool = False

    def __post_init__(self) -> None:
        for name, count in (("workers", self.workers), ("ps", self.ps)):
            if not 0 <= count <= MOST_TASKS:
                raise ClusterConfigError(
                    f"The number of tasks of a type must be from 0 to {MOST_TASKS}. Received: "
                    f"{name}={quoted(count)}. Correct it."
                )
        if self.workers + self.chief < 1:
            raise ClusterConfigError(
                "A cluster must have at least one task that trains. Received: no worker and no "
                "chief. Add a worker."
            )

    @classmethod
    def of(cls, total: int, ps: int = 0, chief: bool = False, evaluator: bool = False) -> Roles:
        """Returns the roles of `total` tasks; the tasks without another role are workers.

        Raises:
          ClusterConfigError: if no task is left that trains.
        """
        workers = total - ps - chief - evaluator
        if workers + chief < 1 or workers < 0:
            raise ClusterConfigError(
                f"At least one process must be left to train. Received: {total} processes for {ps} "
                f"ps, {int(chief)} chief, {int(evaluator)} evaluator. Start more processes, or "
                "request fewer other roles."
            )
        return cls(workers, ps, chief, evaluator)

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All tasks in order: the chief, the workers, the parameter servers and the evaluator."""
        counts = (
            ("chief", self.chief),
            ("worker", self.workers),
            ("ps", self.ps),
            ("evaluator", self.evaluator),
        )
        return tuple(Task(name, index) for name, count in counts for index in range(count))

    def assign_to(self, config: TFConfig) -> TFConfig:
        """Returns `config`, all of whose tasks are workers, with these roles assigned by rank.

        An evaluator's address is removed from the cluster.

        >>> config = TFConfig.from_json(
        ...     '{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}')
        >>> Roles(workers=1, chief=True).assign_to(config).to_json()
        '{"cluster": {"chief": ["a:1"], "worker": ["b:2"]}, "task": {"type": "worker", "index": 0}}'

        Raises:
          ClusterConfigError: if there are more or fewer tasks than roles.
        """
        workers = config.cluster.training_tasks
        if len(workers) != len(self.tasks):
            raise ClusterConfigError(
                f"The number of processes must equal the number of roles. Received: {len(workers)} "
                f"processes, {len(self.tasks)} roles. Start as many processes as there are roles."
            )
        names = dict(zip(workers, self.tasks, strict=True))
        addresses = {
            names[worker]: address
            for worker, address in config.cluster.addresses.items()
            if names[worker].type != "evaluator"
        }
        return replace(config, cluster=ClusterSpec(addresses), task=names[config.task])
