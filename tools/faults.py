"""Does harm to jobs, files and inputs, and prints what came of it: `make faults`.

    faults.py [--short] [--seed N]

Each line of the table is a kind of fault: how many were tried, after how many everything went on
or ended as it should, how long it took to be noticed, what was lost beyond what a checkpoint of
every third step leaves to do again, and what was left behind. The exit code is 1 if a fault was
not survived, or anything was lost or left behind. The seed is printed; given again it makes the
same choices.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

PROGRAM = ROOT / "tests" / "distributed" / "killed_training.py"
_STEPS = 32  # of the program
_GONE_SECONDS = 10.0


@dataclass
class Row:
    """What came of one kind of fault.

    Attributes:
      kind: what was done.
      tried: how often.
      survived: how often it went on or ended as it should.
      seconds: until it was noticed, of each that is noticed from outside.
      lost: how often anything was lost beyond the bound.
      left: processes that were left behind.
    """

    kind: str
    tried: int = 0
    survived: int = 0
    seconds: list[float] = field(default_factory=list)
    lost: int = 0
    left: int = 0
    errors: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        noticed = "-"
        if self.seconds:
            noticed = f"{statistics.median(self.seconds):.2f} s, {max(self.seconds):.2f} s"
        return (
            f"| {self.kind} | {self.tried} | {self.survived} | {noticed} | {self.lost} | "
            f"{self.left} |"
        )


def fuzz(row: Row, count: int, seed: int) -> None:
    """Gives inputs, most of them wrong, to what reads inputs."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded

    from tests.faults.inputs import TARGETS, is_answered

    for name, (inputs, function) in TARGETS.items():
        share = count // len(TARGETS) + 1
        tried = 0

        @seeded(seed)
        @settings(
            max_examples=share, deadline=None, database=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(inputs)
        def check(value):
            nonlocal tried
            tried += 1
            is_answered(function, value)  # noqa: B023  # it is called in this round

        try:
            check()
        except Exception as error:
            row.errors.append(f"{name}: {type(error).__name__}: {error}")
            tried -= 1
            row.tried += 1
        row.tried += tried
        row.survived += tried


def harm_files(row: Row, count: int, chance: random.Random) -> None:
    """Damages files of saved rows, or keeps them from being written."""
    import os
    import resource

    import numpy as np

    import strategies

    ids = np.arange(64)
    old, new = (np.full([64, 4], value, np.float32) for value in (1, 2))

    def made(rows: np.ndarray) -> strategies.DistributedEmbedding:
        layer = strategies.DistributedEmbedding(4, name="rows")
        layer.build()
        layer.set_rows(ids, rows)
        return layer

    def has(layer: strategies.DistributedEmbedding, rows: np.ndarray) -> bool:
        return np.array_equal(layer.rows()[1], rows)

    class Killed(BaseException):
        pass

    def full(directory: str) -> bool:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (chance.randrange(1100), limit[1]))
        try:
            made(new).save_rows(directory)
        except OSError:
            pass
        else:
            return False
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        layer = made(new)
        layer.load_rows(directory)
        return has(layer, old)

    def killed(directory: str) -> bool:
        left, sync, replace = [chance.randrange(12)], os.fsync, Path.replace

        def or_killed(function: Callable) -> Callable:
            def call(*arguments: object) -> object:
                left[0] -= 1
                if left[0] < 0:
                    raise Killed
                return function(*arguments)

            return call

        os.fsync, Path.replace = or_killed(sync), or_killed(replace)
        try:
            made(new).save_rows(directory)
        except Killed:
            pass
        finally:
            os.fsync, Path.replace = sync, replace
        layer = made(new * 3)
        layer.load_rows(directory)
        return has(layer, old) or has(layer, new)

    def damaged(directory: str) -> bool:
        files = sorted(path for path in Path(directory).rglob("*") if path.is_file())
        path = chance.choice(files)
        data = bytearray(path.read_bytes())
        if chance.random() < 0.5:
            del data[chance.randrange(len(data)) :]
        else:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        layer = made(new)
        try:
            layer.load_rows(directory)
        except ValueError:
            return has(layer, new)
        return False

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for number in range(count):
        harm = (full, killed, damaged)[number % 3]
        with tempfile.TemporaryDirectory() as directory:
            made(old).save_rows(directory)
            row.tried += 1
            try:
                is_whole = harm(directory)
            except Exception as error:
                row.errors.append(f"{harm.__name__}: {type(error).__name__}: {error}")
                continue
        row.survived += is_whole
        row.lost += not is_whole


def kill(row: Row, victim: str, communication: str, chance: random.Random, whole: str) -> None:
    """Kills a process of a job at a random moment; the job goes on, or is started again."""
    from tests.support.job import Job

    directory = Path(tempfile.mkdtemp())
    job = Job(directory)
    job.environ["KERAS_STRATEGIES_COMMUNICATION"] = communication
    step, delay = chance.randrange(1, _STEPS - 1), chance.random() * 0.1
    arguments = ["--workers", 2, "--max-restarts", 2, "--verbose", PROGRAM, "checkpoints"]
    row.tried += 1
    what = f"{victim} at step {step} + {delay:.3f} s"
    try:
        process = job.start(*arguments, "--pause", 0.05)
        pids, lines, killed = {"launcher": process.pid}, [], 0.0
        for line in process.stdout:
            lines.append(line)
            if found := re.match(r"tf-config: (worker \d) started.* as process (\d+)", line):
                pids[found[1]] = int(found[2])
            if not killed and line.startswith(f"[worker 0] step {step}\n"):
                time.sleep(delay)
                _kill(pids[victim])
                killed = time.monotonic()
            if killed and line.startswith("tf-config: ") and "failed with" in line:
                row.seconds.append(time.monotonic() - killed)
                killed = float("inf")
        code = process.wait()
        if victim == "launcher":
            row.left += _left(job)
            output, code = "", None
            code, output = job.finish(job.start(*arguments), 120)
            lines = output.splitlines(keepends=True)
        found = {line.split()[4] for line in lines if " weights " in line}
        row.left += _left(job)
        row.survived += code == 0
        row.lost += code == 0 and found != {whole}
        if code != 0 or found != {whole} or not killed:
            row.errors.append(f"{what}: exit code {code}, weights {found}: {lines[-5:]}")
    finally:
        job.close()
        shutil.rmtree(directory, ignore_errors=True)


def _kill(pid: int) -> None:
    import os

    os.kill(pid, signal.SIGKILL)


def _left(job: object) -> int:
    """Returns how many processes of a job are there after a while."""
    end = time.monotonic() + _GONE_SECONDS
    while job.processes() and time.monotonic() < end:
        time.sleep(0.1)
    return len(job.processes())


def undisturbed(communication: str) -> str:
    """Returns the weights that the program ends with if nobody harms it."""
    from tests.support.job import Job

    directory = Path(tempfile.mkdtemp())
    job = Job(directory)
    job.environ["KERAS_STRATEGIES_COMMUNICATION"] = communication
    try:
        code, output = job.finish(job.start("--workers", 2, PROGRAM, "checkpoints"), 120)
    finally:
        job.close()
        shutil.rmtree(directory, ignore_errors=True)
    found = {line.split()[4] for line in output.splitlines() if " weights " in line}
    if code != 0 or len(found) != 1:
        raise RuntimeError(f"The program ends with {code}: {output}")
    return found.pop()


def main() -> int:
    """Does all harm, prints the table and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="a few of each, in under 4 minutes")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    arguments = parser.parse_args()
    short = arguments.short
    print(f"seed: {arguments.seed}; again: make faults SEED={arguments.seed}"
          f"{' SHORT=1' if short else ''}", flush=True)  # fmt: skip
    chance = random.Random(arguments.seed)
    rows = [Row("inputs of users and schedulers"), Row("files of rows: full, killed, damaged")]
    fuzz(rows[0], 6_000 if short else 100_000, arguments.seed)
    harm_files(rows[1], 30 if short else 300, chance)
    for communication in ["tensorflow"] if short else ["tensorflow", "horovod"]:
        whole = undisturbed(communication)
        for victim in ("worker 0", "worker 1", "launcher"):
            row = Row(f"SIGKILL of {victim}, {communication}'s collectives")
            rows.append(row)
            for _ in range(1 if short else 10):
                kill(row, victim, communication, chance, whole)
    print("| Fault | Tried | Went on or ended | Noticed: median, max | Lost | Left behind |")
    print("|---|---|---|---|---|---|")
    print(*rows, sep="\n")
    for row in rows:
        for error in row.errors:
            print(f"{row.kind}: {error}")
    return any(row.tried != row.survived or row.lost or row.left for row in rows)


if __name__ == "__main__":
    sys.exit(main())
