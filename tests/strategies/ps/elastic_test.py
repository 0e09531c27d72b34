"""Workers join and leave a job, and each example of an epoch is trained on once."""

import collections
import json
import os
import re
import signal
from pathlib import Path

import pytest

from tests.support.job import HANGING_SECONDS

SLOW = pytest.mark.slow
PROGRAM = Path(__file__).resolve().parent.parent.parent / "distributed" / "elastic_epochs.py"
EPOCHS, STEPS, EXAMPLES = 7, 10, 60


class Training:
    """A job of 2 or 3 workers that run elastic_epochs.py.

    Args:
      job: the job, in whose directory everything is written.
      arguments: the mode and the options of the program.
    """

    def __init__(self, job, mode, *arguments):
        self.job = job
        job.environ["KERAS_STRATEGIES_SECRET"] = "0123456789abcdef"
        self._program = [PROGRAM, mode, job.directory, EPOCHS, *arguments]
        options = ["--workers", "2:3", "--ps", 1, "--log-dir", "logs", "--start-timeout", 120]
        self.process = job.start(*options, *self._program)
        self._address = ""
        while not self._address:
            line = self.process.stdout.readline()
            assert line, "the job has ended"
            self._address = "".join(re.findall(r"tf-config join (\S+) ", line))

    def join(self):
        """Starts `tf-config join`."""
        command = [self.job.python, "-m", "tf_config", "join", self._address, *self._program]
        return self.job.popen([*map(str, command)])

    def touch(self, *names):
        """Creates files that tell workers to wait, or to go on."""
        for name in names:
            (self.job.directory / name).touch()

    def steps(self, rank):
        """Returns the epoch, the step and the number of workers of each step of a worker."""
        path = self.job.directory / f"steps-{rank}"
        lines = path.read_text().splitlines() if path.exists() else []
        return [tuple(map(int, line.split())) for line in lines]

    def wait_for(self, rank, epoch, step):
        """Waits until a worker has reached a step."""
        self.job.wait_for(
            lambda: (
                self.process.poll() is not None
                or any(each[:2] == (epoch, step) for each in self.steps(rank))
            ),
            HANGING_SECONDS,
        )

    def workers_by_epoch(self, rank):
        """Returns the number of workers that divide each epoch, as a worker has seen it."""
        workers = collections.defaultdict(set)
        for epoch, _, count in self.steps(rank):
            workers[epoch].add(count)
        return [*workers], [*workers.values()]

    def finish(self):
        """Returns how often each example was trained on, when the job has ended."""
        code, output = self.job.finish(self.process, HANGING_SECONDS)
        assert code == 0, output
        return json.loads((self.job.directory / "counts.json").read_text()), output


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("half_async", ["checkpoints"]),
        pytest.param("half_async", ["arrays"], marks=SLOW),
        pytest.param("async", [], marks=SLOW),
        pytest.param("async", ["arrays", "checkpoints"], marks=SLOW),
    ],
    ids="-".join,
)
def test_a_worker_joins_and_leaves(forked, mode, options):
    training = Training(forked, mode, *options)
    # It joins in epoch 1 and leaves in epoch 4, while the others wait in the middle of these.
    training.touch("stop-0-1-4", "stop-1-1-7", "stop-2-4-3", "stop-0-4-6", "stop-1-4-9")
    joined = training.join()
    training.wait_for(2, 1, 0)
    training.touch("go-1-4", "go-1-7")
    for rank, step in ((0, 6), (1, 9), (2, 3)):
        training.wait_for(rank, 4, step)
    os.kill(int((forked.directory / "pid-2").read_text()), signal.SIGTERM)
    code, text = forked.finish(joined, HANGING_SECONDS)
    assert code == 0, text
    training.touch("go-4-6", "go-4-9")
    counts, output = training.finish()
    assert "worker 2, which had joined the job, has left" in output
    for rank in (0, 1):
        assert training.steps(rank) == [
            (epoch, step, 3 if 2 <= epoch <= 4 else 2)
            for epoch in range(EPOCHS)
            for step in range(STEPS)
        ]
    epochs, workers = training.workers_by_epoch(2)
    assert epochs == [1, 2, 3, 4] and workers == [{2}, {3}, {3}, {3}]
    # Only the examples that it says: two in each of the last seven steps.
    assert re.search(r"Worker 2 leaves in epoch 4, after 3 of 10 steps\. Its", text), text
    assert "from epoch 5 on" in text
    assert collections.Counter(counts) == {EPOCHS: EXAMPLES - 14, EPOCHS - 1: 14}
    forked.assert_nothing_left()


@SLOW
@pytest.mark.parametrize("mode", ["geo", "half_async"])
def test_a_worker_joins_and_stays(forked, mode):
    """In "geo", a step with one exchange leaves 1 - 1/N of its progress unsent."""
    training = Training(forked, mode)
    training.touch("stop-0-1-4", "stop-1-1-7")
    joined = training.join()
    training.wait_for(2, 1, 0)
    training.touch("go-1-4", "go-1-7")
    counts, _ = training.finish()
    code, text = forked.finish(joined, HANGING_SECONDS)
    assert code == 0 and "finished" in text, text
    assert training.workers_by_epoch(0)[1] == [{2}, {2}, *[{3}] * (EPOCHS - 2)]
    if mode == "half_async":
        assert set(counts) == {EPOCHS}
    else:
        assert min(counts) > 0 and max(counts) < EPOCHS
    forked.assert_nothing_left()


@pytest.mark.parametrize(
    ("strategy", "received"),
    [
        ("ParameterServerStrategy(mode='sync')", "mode='sync'"),
        ("MultiWorkerMirroredStrategy()", "MultiWorkerMirroredStrategy"),
    ],
)
def test_strategies_whose_workers_take_each_step_together_are_refused(forked, strategy, received):
    script = forked.script(f"import strategies\nstrategies.{strategy}\n")
    code, output = forked.run("--workers", "2:3", "--ps", 1, script)
    assert code == 1, output
    assert "--workers 2:3 requires ParameterServerStrategy with mode='async'" in output
    assert f"Received: {received}. " in output
    assert "use --workers 3 --min-workers 2 --max-restarts 3 instead" in output
