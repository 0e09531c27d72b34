"""The commands of a job that is restarted: without workers that are lost, until they return."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tf_config.cluster import Task
from tf_config.errors import ClusterConfigError, quoted
from tf_config.launcher.commands import Command
from tf_config.launcher.job import JobSpec
from tf_config.launcher.ssh import HostUnreachable

# The number of times in a row that a worker may end a job before it is left out.
_MOST_FAILURES = 2


class Restarts:
    """Plans each start of a job.

    A worker that ends the job twice in a row is left out for good, as long as enough workers
    remain. So is a host that cannot be reached at a restart, until it can be reached again.

    Args:
      job: the job at its first start.
      environ: the environment that tasks on this machine inherit.
      min_workers: the minimum number of workers, including the chief; None requires all.
      note: receives messages.

    Raises:
      ClusterConfigError: if the job has fewer than `min_workers` workers.
    """

    def __init__(
        self,
        job: JobSpec,
        environ: Mapping[str, str],
        min_workers: int | None,
        note: Callable[[str], None],
    ):
        count = job.roles.workers + job.roles.chief
        if min_workers is not None and min_workers > count:
            raise ClusterConfigError(
                "--min-workers cannot exceed the number of workers. Received: --min-workers "
                f"{min_workers} for {count}. Lower it, or raise --workers."
            )
        self._job = job
        # The job with the hosts that are lost at the moment.
        self._whole = job
        self._lost: list[str] = []
        self._environ = environ
        self._least = count if min_workers is None else min_workers
        self._note = note
        self._last: Task | None = None
        self._failures = 0

    def commands(self, restart: int) -> list[Command]:
        """Returns the commands of all tasks.

        Raises:
          ClusterConfigError: if the job cannot be started, even with fewer workers.
        """
        job, lost = self._whole, {}
        while True:
            try:
                commands = job.commands(self._environ, restart)
                break
            except HostUnreachable as error:
                smaller = job.without_host(error.host) if restart else None
                if smaller is None or not self._is_enough(smaller):
                    raise
                job, lost[error.host] = smaller, error.said
        reasons = [
            *(
                f"{host} cannot be reached: {quoted(said)}"
                for host, said in lost.items()
                if host not in self._lost
            ),
            *(f"{host} can be reached again" for host in self._lost if host not in lost),
        ]
        if reasons:
            self._continue_with(job, "; ".join(reasons))
        self._lost = list(lost)
        return commands

    def find_returned(self) -> list[str]:
        """Returns the lost hosts that can be reached again; connects to them."""
        return [host for host in self._lost if self._whole.can_reach(host)]

    def record_failure(self, task: Task) -> None:
        """Records the task that ended the job; the next start may leave it out."""
        self._failures = self._failures + 1 if task == self._last else 1
        self._last = task
        if self._failures < _MOST_FAILURES or task.type != "worker":
            return
        smaller = self._job.without(task)
        if smaller is not None and self._is_enough(smaller):
            # A worker of the same host, because workers have other numbers with the lost hosts.
            twin = self._whole.worker_on(self._job.host_of(task))
            self._whole = self._whole.without(twin) or smaller
            self._continue_with(smaller, f"{task} failed {self._failures} times in a row")

    def _is_enough(self, job: JobSpec) -> bool:
        return job.roles.workers + job.roles.chief >= self._least

    def _continue_with(self, job: JobSpec, reason: str) -> None:
        # The workers are renumbered, so the number of failures would be another worker's.
        self._job, self._last, self._failures = job, None, 0
        count = job.roles.workers + job.roles.chief
        self._note(f"{reason}; the job continues with {count} of its workers, renumbered")
