"""The worker that `tf-config join` adds to an elastic job, watched like the tasks of `run`."""

from __future__ import annotations

import signal
from pathlib import Path

from tf_config.launcher.console import Console
from tf_config.launcher.places import OVER, RESTARTS, TakenPlace, describe_end
from tf_config.launcher.runner import JobRunner

# How long a worker may take to leave: it ends its step, or an exchange with the others.
LEAVE_SECONDS = 30.0
_TERMINATED = 128 + signal.SIGTERM


class JoinedWorker(JobRunner):
    """Runs one worker of a job that another launcher runs.

    A signal makes the worker leave the job in order: it gets SIGTERM, and 30 seconds to end. The
    second signal kills it. If the job ends, the worker is ended.

    Args:
      console: prints the worker's lines.
      log_dir: the directory of the worker's log; None writes no log.
      place: the connection to the job.

    Attributes:
      job_restarts: whether the job has ended this worker because it restarts all tasks.
    """

    def __init__(self, console: Console, log_dir: Path | None, place: TakenPlace):
        super().__init__(console, log_dir, restarts=0, max_restarts=0)
        self.job_restarts = False
        self._place = place
        self._is_over = self._is_asked = False

    def result(self) -> int:
        """Tells the job how the worker has ended, and returns the exit code of the command."""
        process = self._processes[0]
        code = process.exit_code
        if self._is_over or (self._is_asked and code == _TERMINATED):  # before it was a member
            code = 0
        self._place.leave(describe_end(code, self._is_asked or process.has_left))
        return code

    def _handle_signals(self, received: list[int]) -> None:
        # Not as in a job: the worker that leaves has not failed, whatever the signal.
        while received:
            received.pop(0)
            if self._is_asked:
                self._stop(signal.SIGKILL)
            else:
                self._is_asked = True
                self._stop(signal.SIGTERM, signal.SIGKILL, grace=LEAVE_SECONDS)

    def _watch_others(self) -> None:
        """Ends the worker if the job ends, or if the launcher of the job is gone."""
        if self._escalation or (end := self._place.end_of_job()) is None:
            return
        self._is_over = end in (OVER, RESTARTS)
        self.job_restarts = end == RESTARTS
        text = {OVER: "the job has ended", RESTARTS: "the job restarts all tasks"}.get(end, end)
        self._console.note(text, 0)
        self._stop(signal.SIGTERM, signal.SIGKILL)
