"""Jobs whose workers come and go, with programs and servers that need no TensorFlow."""

import os
import re
import signal
import sys

import pytest

from tf_config import Address
from tf_config.cli import main
from tf_config.cli.run import describe_places
from tf_config.launcher.job import JobSpec
from tf_config.roles import Roles
from tf_config.worker_range import WorkerRange

SERVE = """
import os, time
print("serves", os.environ["KERAS_STRATEGIES_WORKERS"], os.environ["KERAS_STRATEGIES_STARTED"],
      flush=True)
time.sleep(60)
"""
# A worker that leaves by SIGTERM as one with a strategy does, and is done when there is a file.
WORK = """
import json, os, pathlib, signal, sys, time
from tf_config.launcher.reports import CAN_REJOIN, LEAVES, report
config = json.loads(os.environ["TF_CONFIG"])
me, count = config["task"]["index"], len(config["cluster"]["worker"])
rejoins, colour = map(os.environ.get, ("KERAS_STRATEGIES_REJOINS", "COLOUR"))
elastic = os.environ["KERAS_STRATEGIES_WORKERS"]
print("start", me, "of", count, elastic, rejoins, colour, sys.argv[1:], flush=True)

def leave(*_):
    pathlib.Path(f"leaves-{me}").touch()
    while pathlib.Path(f"stay-{me}").exists():
        time.sleep(0.05)
    report(LEAVES)
    sys.exit(0)

signal.signal(signal.SIGTERM, leave)
report(CAN_REJOIN)
pathlib.Path(f"pid-{me}").write_text(str(os.getpid()))
while not pathlib.Path("done").exists():
    if pathlib.Path(f"fail-{me}").exists():
        sys.exit(7)
    time.sleep(0.05)
print("done", me, flush=True)
"""


SECRET = "0123456789abcdef"


class Elastic:
    """A job of 2 to 4 workers and a server, and the workers that join it."""

    def __init__(self, job, *options):
        self.job = job
        (job.directory / "fake/strategies").mkdir(parents=True)
        for name, text in (("__init__.py", ""), ("serve.py", SERVE)):
            (job.directory / "fake/strategies" / name).write_text(text)
        job.environ["PYTHONPATH"] = f"{job.directory / 'fake'}:{job.environ['PYTHONPATH']}"
        job.environ["KERAS_STRATEGIES_SECRET"] = SECRET
        self.script = job.script(WORK)
        options = [*options, "--env", "COLOUR=blue", "--log-dir", "logs"]
        self.process = job.start("--workers", "2:4", "--ps", 1, *options, self.script, "a b")
        lines = []
        while not lines or "can join the job" not in lines[-1]:
            lines.append(self.process.stdout.readline())
            assert lines[-1], lines
        self.said = lines
        self.address, self.rest = re.search(r"tf-config join (\S+) (.*)", lines[-1]).groups()
        self.wait_for(0, 1)

    def wait_for(self, *ranks):
        """Waits until workers run."""
        paths = [self.job.directory / f"pid-{rank}" for rank in ranks]
        self.job.wait_for(lambda: all(path.exists() and path.read_text() for path in paths), 30)

    def join(self, *options):
        """Starts `tf-config join`."""
        command = [sys.executable, "-m", "tf_config", "join", *options, self.address]
        return self.job.popen([*command, str(self.script), "c"])

    def touch(self, name):
        """Tells the workers something."""
        (self.job.directory / name).touch()

    def finish(self, process=None):
        """Returns the exit code and the output of a command that ends, by default the job's."""
        return self.job.finish(process or self.process, 60)


def test_workers_join_and_are_done_with_the_others(job):
    elastic = Elastic(job)
    assert "2 more workers can join the job: tf-config join 127.0.0.1:" in elastic.said[-1]
    assert elastic.rest.endswith("script.py 'a b'"), elastic.rest
    joined = [elastic.join(), elastic.join()]
    elastic.wait_for(2, 3)
    code, output = elastic.finish(elastic.join())
    assert code == 2
    assert "A worker can only join a job that has a vacant place" in output, output
    elastic.touch("done")
    code, output = elastic.finish()
    assert code == 0, output
    assert output.count(" joins the job, on 127.0.0.1") == 2 and " has left" not in output, output
    assert "serves 2:4 2" in (job.directory / "logs/ps-0.log").read_text()
    for rank in (0, 1):
        text = (job.directory / f"logs/worker-{rank}.log").read_text()
        assert f"start {rank} of 4 2:4 None blue ['a b']" in text
    for process in joined:
        code, output = elastic.finish(process)
        assert code == 0 and re.search(r"start [23] of 4 2:4 1 blue \['c'\]", output), output
    job.assert_nothing_left()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_leaves_and_another_one_takes_its_place(job, number):
    elastic = Elastic(job)
    joined = elastic.join()
    elastic.wait_for(2)
    joined.send_signal(number)
    code, output = elastic.finish(joined)
    assert code == 0 and "failed" not in output, output
    (job.directory / "pid-2").unlink()
    again = elastic.join()
    elastic.wait_for(2)
    elastic.touch("done")
    assert elastic.finish(again)[0] == 0
    code, output = elastic.finish()
    assert code == 0 and "worker 2, which had joined the job, has left" in output, output
    job.assert_nothing_left()


def test_a_worker_of_the_launcher_leaves_too_and_its_place_is_vacant(job):
    elastic = Elastic(job)
    joined = elastic.join()
    elastic.wait_for(2)
    pid = job.directory / "pid-1"
    os.kill(int(pid.read_text()), signal.SIGTERM)
    lines = []
    while "worker 1 has left the job; the others continue" not in "".join(lines):
        lines.append(elastic.process.stdout.readline())
        assert lines[-1], lines
    others = [elastic.join(), elastic.join()]
    elastic.wait_for(3)
    elastic.touch("done")
    for process in (joined, *others):
        assert elastic.finish(process)[0] == 0
    assert elastic.finish()[0] == 0
    job.assert_nothing_left()


def test_below_the_minimum_the_job_fails(job):
    elastic = Elastic(job)
    os.kill(int((job.directory / "pid-1").read_text()), signal.SIGTERM)
    code, output = elastic.finish()
    assert code == 1, output
    assert "must have 2 workers or more with --workers 2:4. Received: 1, after" in output, output
    job.assert_nothing_left()


def test_below_the_minimum_all_tasks_are_restarted_and_joined_ones_join_again(job):
    elastic = Elastic(job, "--max-restarts", "1")
    joined = elastic.join()
    elastic.wait_for(2)
    pids = {rank: int((job.directory / f"pid-{rank}").read_text()) for rank in (1, 2)}
    for rank in (0, 1, 2):
        (job.directory / f"pid-{rank}").unlink()
    for pid in pids.values():
        os.kill(pid, signal.SIGTERM)
    assert elastic.finish(joined)[0] == 0
    # Who joins earlier gets the place of worker 1, and nothing has to be restarted.
    elastic.wait_for(0, 1)
    again = elastic.join()
    elastic.wait_for(2)
    elastic.touch("done")
    assert elastic.finish(again)[0] == 0
    code, output = elastic.finish()
    assert code == 0 and "restart 1 of 1" in output, output
    job.assert_nothing_left()


def test_a_joined_worker_ends_if_the_job_has_ended_before_it_comes_back(job):
    elastic = Elastic(job, "--max-restarts", "1")
    joined = elastic.join()
    elastic.wait_for(2)
    elastic.touch("stay-2")
    pid = int((job.directory / "pid-1").read_text())
    (job.directory / "pid-1").unlink()
    os.kill(int((job.directory / "pid-0").read_text()), signal.SIGTERM)
    os.kill(pid, signal.SIGTERM)
    elastic.wait_for(1)
    # Worker 2 may be told later than worker 1 is restarted, and must not be done by itself.
    job.wait_for((job.directory / "leaves-2").exists, 30)
    elastic.touch("done")
    code, output = elastic.finish()
    assert code == 0 and "restart 1 of 1" in output, output
    (job.directory / "stay-2").unlink()
    code, output = elastic.finish(joined)
    assert code == 0 and output.rstrip().endswith("tf-config: the job has ended"), output
    job.assert_nothing_left()


def test_a_failure_of_a_joined_worker_is_its_own(job):
    elastic = Elastic(job)
    joined = elastic.join()
    elastic.wait_for(2)
    elastic.touch("fail-2")
    code, output = elastic.finish(joined)
    assert code == 7 and "worker 2 failed with exit code 7" in output, output
    elastic.touch("done")
    code, output = elastic.finish()
    assert code == 0, output
    assert "worker 2, which had joined the job, has failed with exit code 7" in output, output


def test_a_failure_of_another_worker_ends_the_joined_ones(job):
    elastic = Elastic(job)
    joined = elastic.join()
    elastic.wait_for(2)
    elastic.touch("fail-1")
    code, output = elastic.finish()
    assert code == 7, output
    code, output = elastic.finish(joined)
    assert code == 0 and "the job has ended" in output, output
    job.assert_nothing_left()


def test_a_killed_launcher_leaves_no_joined_worker(job):
    elastic = Elastic(job)
    joined = elastic.join()
    elastic.wait_for(2)
    elastic.process.kill()
    code, output = elastic.finish(joined)
    assert "the connection to the job has ended" in output, output
    job.assert_nothing_left(10)


def test_a_killed_join_leaves_no_worker_and_the_job_goes_on(job):
    elastic = Elastic(job)
    joined = elastic.join()
    elastic.wait_for(2)
    joined.kill()
    elastic.finish(joined)
    elastic.touch("done")
    code, output = elastic.finish()
    assert code == 0 and "worker 2, which had joined the job, is lost" in output, output
    job.assert_nothing_left()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--workers", "2:4"], "--workers MIN:MAX requires --ps, because only workers with"),
        (["--workers", "2:4"], "pass --workers 4 --min-workers 2 --max-restarts 3."),
        (["--workers", "4:2", "--ps", "1"], "A range of workers must be MIN:MAX"),
        (["--workers", "2:", "--ps", "1"], "the number must be 0 or more"),
        (
            ["--workers", "2:4", "--ps", "1", "--min-workers", "2", "--max-restarts", "1"],
            "--min-workers cannot be combined with --workers MIN:MAX",
        ),
        (["--workers", "2", "--join-port", "4000"], "--join-port requires --workers MIN:MAX"),
        (["--workers", "2:4", "--ps", "1", "--hosts", "localhost"], "must have its own slot"),
    ],
)
def test_what_cannot_be_elastic_is_refused(capsys, arguments, text):
    assert main(["run", *arguments, "true"]) == 2
    assert text in capsys.readouterr().err


def test_a_job_cannot_be_joined_without_its_secret(capsys, monkeypatch):
    monkeypatch.delenv("KERAS_STRATEGIES_SECRET", raising=False)
    assert main(["join", "127.0.0.1:1", "true"]) == 2
    assert "A worker must have the secret of the job" in capsys.readouterr().err


def test_the_places_are_the_slots_of_the_hosts(capsys):
    arguments = ["--workers", "2:4", "--ps", "1", "--hosts", "localhost:3", "--dry-run", "true"]
    assert main(["run", *arguments]) == 0
    output = capsys.readouterr().out
    assert [line.split(":")[0] for line in output.splitlines()] == [
        "worker 0", "worker 1", "worker 2", "ps 0",
    ]  # fmt: skip
    assert output.count("KERAS_STRATEGIES_STARTED=3") == 4


def test_the_secret_is_shown_on_a_terminal_only():
    job = JobSpec(Roles(4, 1), ["train.py", "a b"], elastic=WorkerRange(2, 4))
    at = Address("127.0.0.1", 5)
    join = "tf-config join 127.0.0.1:5 train.py 'a b'"
    assert describe_places(job, at, "", False) == f"2 more workers can join the job: {join}"
    shown = describe_places(job, at, SECRET, True)
    assert shown == f"2 more workers can join the job: KERAS_STRATEGIES_SECRET={SECRET} {join}"
    hidden = describe_places(job, at, SECRET, False)
    assert SECRET not in hidden and "set KERAS_STRATEGIES_SECRET before the start" in hidden
