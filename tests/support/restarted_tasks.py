"""Jobs whose servers or workers are killed and restarted alone, and what they say of it."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from tests.support.job import HANGING_SECONDS, Job

PROGRAM = Path(__file__).resolve().parent.parent / "distributed" / "servers_restarted.py"
WORKERS = 2
# The steps of one worker whose updates may not have reached all servers: those that are merged and
# those that are sent.
_MOST_UNDER_WAY = 8


class RestartedTasks:
    """A job of two workers that train until they are told to stop, and its servers.

    Args:
      job: the job, in whose directory everything is written.
      mode: the mode of the parameter servers.
      servers: the number of servers.
      restarts: how often a task may be restarted.
      program: what the workers run: it writes the files that servers_restarted.py describes.
      arguments: further options of `tf-config run`.

    Attributes:
      kills: how many servers were killed.
      kills_of: how often each worker was killed.
    """

    def __init__(
        self,
        job: Job,
        mode: str,
        servers: int,
        restarts: int,
        program: Path = PROGRAM,
        arguments: Sequence[str] = (),
    ):
        self.job = job
        self.mode = mode
        self.servers = servers
        self.kills = 0
        self.kills_of = [0] * WORKERS
        job.environ["TMPDIR"] = str(job.directory)
        self.process: subprocess.Popen = job.start(
            "--workers", WORKERS, "--ps", servers, "--max-restarts", restarts, "--server-saves", 1,
            "--start-timeout", 120, *arguments, program, mode, job.directory,
        )  # fmt: skip

    def lines(self, name: str) -> list[str]:
        """Returns the lines of a file that the workers write."""
        path = self.job.directory / name
        return path.read_text().splitlines() if path.exists() else []

    def saves(self) -> list[Path]:
        """Returns the saves of the servers."""
        return list(self.job.directory.glob("keras-strategies-*/latest.json"))

    def wait_for_steps(self, more: int) -> None:
        """Waits until each worker has taken some more steps."""
        names = [f"steps-{rank}" for rank in range(WORKERS)]
        enough = {name: len(self.lines(name)) + more for name in names}
        self.job.wait_for(
            lambda: (
                self.process.poll() is not None
                or all(len(self.lines(name)) >= enough[name] for name in names)
            ),
            HANGING_SECONDS,
        )

    def wait_until_saved(self) -> None:
        """Waits until workers train, and all servers have saved their variables since."""
        self.wait_for_steps(50)
        start = time.time()

        def is_saved() -> bool:
            times = [path.stat().st_mtime for path in self.saves()]
            return len(times) == self.servers and min(times) > start

        self.job.wait_for(lambda: self.process.poll() is not None or is_saved(), HANGING_SECONDS)

    def kill_server(self, chance: random.Random) -> float:
        """Kills a server at a random moment; returns the seconds until all workers continued."""
        time.sleep(chance.random() * 2)
        victims = self._servers()
        if len(victims) < self.servers:  # the job has ended; its output says why
            return 0.0
        self.kills += 1
        return self._kill(chance.choice(victims).pid)

    def kill_worker(self, chance: random.Random) -> float:
        """Kills a worker at a random moment; returns the seconds until all workers continued."""
        time.sleep(chance.random() * 2)
        victim = chance.randrange(WORKERS)
        pid = int(self.lines(f"pids-{victim}")[-1])
        if not psutil.pid_exists(pid):  # the job has ended; its output says why
            return 0.0
        self.kills_of[victim] += 1
        return self._kill(pid)

    def _kill(self, pid: int) -> float:
        os.kill(pid, signal.SIGKILL)
        start = time.monotonic()
        # At most one step was under way; the steps behind it are on the restarted server.
        self.wait_for_steps(10)
        seconds = time.monotonic() - start
        self.wait_for_steps(40)
        return seconds

    def _servers(self) -> list[psutil.Process]:
        return [each for each in self.job.processes() if "strategies.serve" in each.cmdline()]

    def finish(self) -> tuple[int | None, str]:
        """Tells the workers to stop; returns the exit code and the output of the job."""
        (self.job.directory / "stop").touch()
        return self.job.finish(self.process, HANGING_SECONDS)

    def starts(self) -> list[int]:
        """Returns how often each worker was started."""
        return [len(self.lines(f"pids-{rank}")) for rank in range(WORKERS)]

    def lost_steps(self, output: str) -> list[int]:
        """Returns for each worker how many of the steps that it recorded no server has applied.

        A worker that is killed has recorded a step before its update has reached the servers, or
        has not recorded one whose update has.
        """
        pattern = r"steps of worker (\d): \d+ taken, (\d+) made on ps \d"
        made: list[list[int]] = [[] for _ in range(WORKERS)]
        for worker, number in re.findall(pattern, output):
            made[int(worker)].append(int(number))
        return [len(self.lines(f"steps-{rank}")) - max(made[rank]) for rank in range(WORKERS)]


def worker_faults_in(output: str, training: RestartedTasks) -> str:
    """Returns what is wrong with the output of a job whose workers were killed; "" if nothing is.

    No other task may have been restarted. The program itself compares the variables, rows and
    counts on the servers with their closed forms.
    """
    if (count := output.count("] passed")) != WORKERS:
        return f"{count} workers have passed"
    expected = [1 + kills for kills in training.kills_of]
    if (starts := training.starts()) != expected:
        return f"workers were started {starts} times, where {expected} are expected"
    if output.count(" alone, the other tasks continue") != sum(training.kills_of):
        return f"not {sum(training.kills_of)} restarts alone"
    if (count := len(re.findall(r"\] ps \d serves at", output))) != training.servers:
        return f"{count} starts of servers"
    if training.mode.startswith("geo"):  # what the servers count is exchanges
        return ""
    lost = training.lost_steps(output)
    for rank, kills in enumerate(training.kills_of):
        if not -kills <= lost[rank] <= _MOST_UNDER_WAY * kills:
            return f"worker {rank}: {lost[rank]} recorded steps lost in {kills} kills"
    return ""


def server_faults_in(output: str, servers: int, kills: int) -> str:
    """Returns what is wrong with the output of a job whose servers were killed; "" if nothing is.

    The steps that a server has applied are those that a worker has taken, without those that it
    says are lost.
    """
    if (count := output.count("] passed")) != WORKERS:
        return f"{count} workers have passed"
    for what in (" alone, the other tasks continue", " serves again at "):
        if output.count(what) != kills:
            return f"not {kills} times {what!r}"
    pattern = r"\[worker (\d)\] .*ps (\d) has lost (\d+) steps of this worker"
    said = re.findall(pattern, output)
    if len(said) != WORKERS * kills:
        return f"of {kills} restarts, {len(said)} were said by {WORKERS} workers"
    for worker, taken, made, server in re.findall(
        r"steps of worker (\d): (\d+) taken, (\d+) made on ps (\d)", output
    ):
        lost = sum(int(n) for w, s, n in said if (w, s) == (worker, server))
        if int(made) != int(taken) - lost:
            return f"worker {worker}: {taken} taken, {lost} lost, {made} made on ps {server}"
    return ""
