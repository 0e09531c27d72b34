"""Jobs that workers join and leave while they count how often each example is trained on."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.job import HANGING_SECONDS, Job

PROGRAM = Path(__file__).resolve().parent.parent / "distributed" / "elastic_epochs.py"
# Those of the program. Up to four workers have equal parts of a batch.
EXAMPLES, BATCH = 60, 12
# How long a worker waits for a job that may have ended.
JOIN_SECONDS = 60


class ElasticTraining:
    """A job that runs elastic_epochs.py.

    Args:
      job: the job, in whose directory everything is written.
      mode: the mode of the parameter servers.
      epochs: the number of epochs.
      options: the options of the program.
      workers: the range of the number of workers.
      stops: the names of files that tell workers to wait, from the start on.
      restarts: how often tasks are restarted.
      servers: the number of parameter servers.
      arguments: further options of `tf-config run`.
    """

    def __init__(
        self,
        job: Job,
        mode: str,
        epochs: int,
        *options: str,
        workers: str = "2:3",
        stops: Sequence[str] = (),
        restarts: int = 0,
        servers: int = 1,
        arguments: Sequence[str] = (),
    ):
        self.job = job
        job.environ["KERAS_STRATEGIES_SECRET"] = "0123456789abcdef"
        self._program = [PROGRAM, mode, job.directory, epochs, *options]
        self.touch(*stops)
        launch = ["--workers", workers, "--ps", servers, "--log-dir", "logs", *arguments]
        launch += ["--start-timeout", 120, "--max-restarts", restarts]
        self.process: subprocess.Popen = job.start(*launch, *self._program)
        address = None
        while address is None:
            line = self.process.stdout.readline()
            assert line, "the job has ended"
            address = re.search(r"tf-config join (\S+) ", line)
        self._address = address[1]

    def join(self, by: Sequence[str] = ()) -> subprocess.Popen:
        """Starts `tf-config join`, by another command such as `srun` if there is one."""
        command = [self.job.python, "-m", "tf_config", "join", "--start-timeout", JOIN_SECONDS]
        command += [self._address, *self._program]
        return self.job.popen([*by, *map(str, command)])

    def touch(self, *names: str) -> None:
        """Creates files that tell workers to wait, or to go on."""
        for name in names:
            (self.job.directory / name).touch()

    def steps(self, rank: int) -> list[tuple[int, int, int]]:
        """Returns the epoch, the step and the number of workers of each step of a worker."""
        path = self.job.directory / f"steps-{rank}"
        lines = path.read_text().splitlines() if path.exists() else []
        return [tuple(map(int, line.split())) for line in lines if line.count(" ") == 2]

    def wait_for(self, rank: int, epoch: int, step: int) -> None:
        """Waits until a worker has reached a step."""
        self.job.wait_for(
            lambda: (
                self.process.poll() is not None
                or any(each[:2] == (epoch, step) for each in self.steps(rank))
            ),
            HANGING_SECONDS,
        )

    def workers_by_epoch(self, rank: int) -> tuple[list[int], list[set[int]]]:
        """Returns the epochs that a worker has seen, and how many workers divide each of them."""
        workers: dict[int, set[int]] = {}
        for epoch, _, count in self.steps(rank):
            workers.setdefault(epoch, set()).add(count)
        return [*workers], [*workers.values()]

    def lost(self, text: str) -> int:
        """Returns how many examples a worker left to nobody, by what it said when it left."""
        pattern = r"leaves in epoch (\d+), after (\d+) of (\d+) steps.* from epoch (\d+) on"
        found = re.search(pattern, text)
        if found is None:
            return 0
        epoch, made, steps, following = map(int, found.groups())
        _, workers = self.workers_by_epoch(0)
        share = [BATCH // max(counts) for counts in workers]
        later = sum(steps * share[each] for each in range(epoch + 1, following))
        return (steps - made) * share[epoch] + later

    def finish(self) -> tuple[list[int], str]:
        """Returns how often each example was trained on, when the job has ended."""
        code, output = self.job.finish(self.process, HANGING_SECONDS)
        assert code == 0, f"exit code {code}: {output}"
        counts = json.loads((self.job.directory / "counts.json").read_text())
        return [int(count) if count == int(count) else count for count in counts], output
