"""Does harm to jobs, files and inputs, and prints what came of it: `make faults`.

    python -m tests.faults.run [--short] [--only KIND ...] [--seed N] [--python PYTHON]

Each line of the table is a kind of fault: how many were tried, after how many everything went on
or ended as it should, how long it took to be noticed, what was lost beyond what a checkpoint of
every third step leaves to do again, and what was left behind. The exit code is 1 if a fault was
not survived, or anything was lost or left behind. The seed is printed; given again it makes the
same choices. Several jobs run at once, for one that is harmed waits most of its time.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import multiprocessing
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.support import network_faults
from tests.support.elastic_training import EXAMPLES, JOIN_SECONDS, ElasticTraining
from tests.support.fork_server import ForkServer
from tests.support.job import Job
from tests.support.restarted_tasks import (
    RestartedTasks,
    server_faults_in,
    worker_faults_in,
)
from tests.support.two_hosts import TwoHosts, missing

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = ROOT / "tests" / "distributed" / "killed_training.py"
_KINDS = (
    "inputs", "files", "memory", "servers", "workers", "members", "resumes", "saves", "kills",
    "network",
)  # fmt: skip
RESUMED = PROGRAM.with_name("resumed_reading.py")
_KILLS = 30  # of each strategy and mode
_KILLS_OF_A_JOB = 6  # of those whose tasks are restarted alone
# The part of the data that is read after a resume at nine tenths of an epoch: the last tenth, the
# steps since the checkpoint, a shuffle buffer, and what TensorFlow reads ahead of a file.
_READ_AGAIN = 0.2
_SHORT_WAY = "TensorFlow's collectives"
# Of each strategy a way whose checkpoints are written while training goes on.
_SAVING_WAYS = (
    "MirroredStrategy", "CentralStorageStrategy", "TensorFlow's collectives", "servers, sync",
)  # fmt: skip
_SLOW_FLUSH = 0.05
_GONE_SECONDS = 10.0
_AT_ONCE = 3


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

    def add(self, other: Row) -> None:
        """Counts what came of others of this kind too."""
        for name in ("tried", "survived", "seconds", "lost", "left", "errors"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def __str__(self) -> str:
        noticed = "-"
        if self.seconds:
            noticed = f"{statistics.median(self.seconds):.2f} s, {max(self.seconds):.2f} s"
        return (
            f"| {self.kind} | {self.tried} | {self.survived} | {noticed} | {self.lost} | "
            f"{self.left} |"
        )


def _tell(row: Row) -> None:
    """Prints how a kind of fault has gone, for all of them take long."""
    noticed = f", noticed within {max(row.seconds):.2f} s" if row.seconds else ""
    print(f"{row.kind}: {row.survived} of {row.tried}{noticed}", *row.errors, sep="\n", flush=True)


def fuzz(count: int, seed: int) -> Row:
    """Gives inputs, most of them wrong, to what reads inputs."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded

    from tests.faults.inputs import TARGETS, is_answered

    row = Row("inputs of users and schedulers")
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
    return row


def harm_files(count: int, seed: int) -> Row:
    """Damages files of saved rows, or keeps them from being written."""
    import os
    import resource

    import numpy as np

    import strategies

    row, chance = Row("files of rows: full, killed, damaged"), random.Random(f"files {seed}")
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
    return row


class Way(NamedTuple):
    """A strategy and how its workers exchange values: what jobs are killed in.

    Attributes:
      victims: the tasks that are killed, and the launcher.
      arguments: options of `tf-config run`.
      program: options of the program.
      communication: the value of KERAS_STRATEGIES_COMMUNICATION.
      is_in_step: whether workers train in step, so that an undisturbed run repeats to the bit.
    """

    victims: tuple[str, ...]
    arguments: tuple[object, ...]
    program: tuple[object, ...] = ()
    communication: str = "auto"
    is_in_step: bool = True


_ALONE = ("worker 0", "launcher")
_WORKERS = ("worker 0", "worker 1", "launcher")
_SERVERS = ("worker 0", "worker 1", "ps 0", "launcher")
_ONE, _TWO, _SERVED = ("--workers", 1), ("--workers", 2), ("--workers", 2, "--ps", 1)
WAYS = {
    "MirroredStrategy": Way(_ALONE, _ONE, ("--strategy", "MirroredStrategy")),
    "CentralStorageStrategy": Way(_ALONE, _ONE, ("--strategy", "CentralStorageStrategy")),
    "shared memory": Way(_WORKERS, _TWO, communication="shared_memory"),
    "Horovod": Way(_WORKERS, _TWO, communication="horovod"),
    "TensorFlow's collectives": Way(_WORKERS, _TWO, communication="tensorflow"),
    "split optimizer state": Way(_WORKERS, _TWO, ("--reduce",)),
    "rows evicted by a full table": Way(_WORKERS, _TWO, ("--evict",)),
    "servers, sync": Way(_SERVERS, _SERVED),
    "servers, async": Way(_SERVERS, _SERVED, ("--mode", "async"), is_in_step=False),
    "servers, half_async": Way(_SERVERS, _SERVED, ("--mode", "half_async"), is_in_step=False),
    "servers, geo": Way(_SERVERS, _SERVED, ("--mode", "geo"), is_in_step=False),
}


class End(NamedTuple):
    """What a worker ends with: the SHA-256 of its weights and its rows, and the steps made."""

    weights: str
    steps: int


def _ends(output: str) -> set[End]:
    found = re.findall(r"weights \d+ (\w+) (\d+)$", output, re.MULTILINE)
    return {End(weights, int(steps)) for weights, steps in found}


@contextlib.contextmanager
def _new_job(python: str, communication: str = "auto") -> Iterator[Job]:
    """Yields a job in a new directory; its processes and the directory end with the block."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        job = Job(Path(directory))
        job.python = python
        job.environ["KERAS_STRATEGIES_COMMUNICATION"] = communication
        try:
            yield job
        finally:
            job.close()


def _program(way: Way) -> list[object]:
    return [PROGRAM, "checkpoints", "--embedding", *way.program]


def kill(
    victim: str, name: str, seed: str, whole: set[End], python: str, in_save: bool = False
) -> Row:
    """Kills a process of a job at a random moment; the job goes on, or is started again.

    Args:
      victim: the task, or the launcher.
      name: one of `WAYS`.
      seed: the seed of the moment.
      whole: what the workers of an undisturbed job end with.
      python: the Python that runs the job.
      in_save: whether the moment is one at which a checkpoint is being written.
    """
    way, chance = WAYS[name], random.Random(seed)
    row = Row(f"SIGKILL of {victim}{' in a save' if in_save else ''}, {name}")
    (total,) = {end.steps for end in whole}
    # Where workers are not in step, one may have ended when the other makes its last steps.
    # And a save must begin after the step.
    last = total * 3 // 4 if in_save else total * 7 // 8
    step, delay = chance.randrange(1, last), chance.random() * 0.1
    # On a slow disk, a checkpoint is being written most of the time.
    flush = _SLOW_FLUSH if in_save else chance.choice([0.0, _SLOW_FLUSH])
    arguments = [*way.arguments, "--max-restarts", 2, "--verbose", *_program(way)]
    arguments += ["--flush", flush]
    if not way.is_in_step:
        # A lost server ends the job, which continues from a checkpoint. See `restart_servers` for
        # the other way.
        arguments = ["--server-saves", 0, *arguments]
    row.tried += 1
    what = f"{victim} at step {step} + {delay:.3f} s, flushes of {flush} s"
    with _new_job(python, way.communication) as job:
        process = job.start(*arguments, "--pause", 0.05)
        pids, lines, killed = {"launcher": process.pid}, [], 0.0
        for line in process.stdout:
            lines.append(line)
            if found := re.match(r"tf-config: ((?:worker|ps) \d) started.* as process (\d+)", line):
                pids[found[1]] = int(found[2])
            made = re.match(r"\[worker 0\] step (\d+)$", line)
            if not killed and made and int(made[1]) >= step:
                unfinished = job.directory / "checkpoints" / "unfinished"
                if not in_save:
                    time.sleep(delay)
                elif not _wait_for_save(process, unfinished, 3 * delay):
                    continue
                _kill(pids[victim])
                killed = time.monotonic()
            if killed and line.startswith("tf-config: ") and "failed with" in line:
                row.seconds.append(time.monotonic() - killed)
                killed = float("inf")
        code = process.wait()
        if victim == "launcher":
            row.left += _left(job)
            code, output = job.finish(job.start(*arguments), 300)
            lines = output.splitlines(keepends=True)
        ends = _ends("".join(lines))
        is_whole = ends == whole if way.is_in_step else {end.steps for end in ends} == {total}
        row.left += _left(job)
        row.survived += code == 0
        row.lost += code == 0 and not is_whole
        if code != 0 or not is_whole or not killed:
            row.errors.append(f"{what}: exit code {code}, {ends}: {lines[-5:]}")
    return row


def _wait_for_save(process: subprocess.Popen, unfinished: Path, delay: float) -> bool:
    """Waits until a checkpoint has been written for some time; returns whether it is incomplete.

    Args:
      process: the job, after whose end no checkpoint is written.
      unfinished: the directory that exists meanwhile.
      delay: how long it has been written, in seconds; less if none takes so long.
    """
    while process.poll() is None:
        if not unfinished.exists():
            time.sleep(0.001)
            continue
        time.sleep(delay)
        if unfinished.exists():
            return True
        delay /= 2
    return False


def restart_servers(mode: str, kills: int, seed: str, python: str) -> Row:
    """Kills one of two servers at random moments; it is restarted, and the workers continue."""
    row = Row(f"SIGKILL of a server, restarted in place, {mode}", tried=kills)
    chance = random.Random(seed)
    with _new_job(python) as job:
        training = RestartedTasks(job, mode, servers=2, restarts=kills)
        training.wait_until_saved()
        row.seconds += [training.kill_server(chance) for _ in range(kills)]
        _finish(
            row, training,
            lambda output: server_faults_in(output, servers=2, kills=kills),
            lambda: training.starts() == [1, 1],
        )  # fmt: skip
    return row


def restart_workers(mode: str, kills: int, seed: str, python: str) -> Row:
    """Kills one of two workers at random moments; it is restarted, and no other task is."""
    row = Row(f"SIGKILL of a worker, restarted alone, {mode}", tried=kills)
    chance = random.Random(seed)
    with _new_job(python) as job:
        training = RestartedTasks(job, mode, servers=2, restarts=kills)
        training.wait_for_steps(50)
        row.seconds += [training.kill_worker(chance) for _ in range(kills)]
        _finish(
            row, training,
            lambda output: worker_faults_in(output, training),
            lambda: sum(training.kills_of) == kills,
        )  # fmt: skip
    return row


def _finish(
    row: Row,
    training: RestartedTasks,
    fault_in: Callable[[str], str],
    has_restarted: Callable[[], bool],
) -> None:
    """Waits for the end of a job whose tasks were restarted alone, and adds what came of it."""
    code, output = training.finish()
    fault = fault_in(output)
    row.left += _left(training.job)
    row.survived += row.tried if code == 0 and has_restarted() else 0
    row.lost += bool(code == 0 and fault)
    if row.survived < row.tried or fault:
        row.errors.append(f"exit code {code}, {training.starts()}, {fault}: {output[-3000:]}")


def all_restarts(
    pool: Executor, restart: Callable[..., Row], short: bool, seed: int, python: str
) -> Iterator[list[Future[Row]]]:
    """Has tasks restarted alone in each mode whose workers are not in step."""
    jobs, kills = (1, 2) if short else (_KILLS // _KILLS_OF_A_JOB, _KILLS_OF_A_JOB)
    for mode in ["half_async"] if short else ["async", "half_async", "geo"]:
        yield [
            pool.submit(restart, mode, kills, f"{seed} {mode} {number}", python)
            for number in range(jobs)
        ]


def resume(workers: int, kind: str, python: str) -> Row:
    """Kills a worker at nine tenths of an epoch; what it read before is not read again."""
    row = Row(f"SIGKILL at 9/10 of an epoch, {kind}, {workers} workers", tried=1)
    program = [RESUMED, "data", *(["--files"] if kind == "read_files" else [])]
    with _new_job(python) as job:
        _, whole = job.finish(job.start("--workers", workers, *program), 300)
        shutil.rmtree(job.directory / "data")
        killed = ["--workers", workers, "--max-restarts", 1, *program, "--kill"]
        code, output = job.finish(job.start(*killed), 300)
        row.left += _left(job)
        row.survived += code == 0 and "restart 1 of 1" in output
        is_same = _ends(output) == _ends(whole) != set()
        is_less = all(
            again <= all_bytes * _READ_AGAIN
            for again, all_bytes in zip(_bytes_read(output), _bytes_read(whole), strict=True)
        )
        row.lost += not (is_same and is_less)
        if not (row.survived and is_same and is_less):
            bytes_read = _bytes_read(output), _bytes_read(whole)
            row.errors.append(f"exit code {code}, read {bytes_read}: {output[-3000:]}")
    return row


def come_and_go(mode: str, epochs: int, seed: str, python: str) -> Row:
    """Has workers join and leave a job at random moments, until it has trained all epochs.

    Lost are jobs in which an example was trained on more or less often than the workers say.
    """
    row = Row(f"workers that join and leave, {mode}")
    chance = random.Random(seed)
    with _new_job(python) as job:
        options = [each for each in ("checkpoints", "rows") if chance.random() < 0.5]
        servers = chance.choice([1, 2])
        training = ElasticTraining(
            job, mode, epochs, "slow", *options, workers="1:4", servers=servers
        )
        joined, texts = [], []
        while training.process.poll() is None:
            time.sleep(chance.random() * 3)
            if joined and (len(joined) == 3 or chance.random() < 0.5):
                joined.pop(chance.randrange(len(joined))).terminate()
            else:
                joined.append(training.join())
        counts, _ = training.finish()
        for process in job.started[1:]:
            code, text = job.finish(process, 3 * JOIN_SECONDS)
            row.tried += 1
            # It may have been told to leave before it had a place, or the others may be done.
            is_right = code in (0, 2, -signal.SIGTERM, 128 + signal.SIGTERM)
            row.survived += is_right
            texts.append(text)
            if not is_right:
                row.errors.append(f"exit code {code}: {text[-2000:]}")
        lost = sum(map(training.lost, texts))
        if sum(counts) != epochs * EXAMPLES - lost or max(counts) > epochs:
            row.lost += 1
            row.errors.append(f"{epochs} epochs, {lost} said to be lost: {counts}")
        row.left += _left(job)
    return row


def _bytes_read(output: str) -> list[int]:
    """Returns how many bytes each worker has read in `fit`, by its rank."""
    found = dict(re.findall(r"read (\d+) (\d+) bytes$", output, re.MULTILINE))
    return [int(found[rank]) for rank in sorted(found)]


def _kill(pid: int) -> None:
    import os

    os.kill(pid, signal.SIGKILL)


def _left(job: Job) -> int:
    """Returns how many processes of a job are there after a while."""
    end = time.monotonic() + _GONE_SECONDS
    while job.processes() and time.monotonic() < end:
        time.sleep(0.1)
    return len(job.processes())


def undisturbed(name: str, python: str) -> set[End]:
    """Returns what the workers of the program end with if nobody harms it."""
    way = WAYS[name]
    with _new_job(python, way.communication) as job:
        code, output = job.finish(job.start(*way.arguments, *_program(way)), 300)
    ends = _ends(output)
    if code != 0 or len({end.steps for end in ends}) != 1:
        raise RuntimeError(f"The program ends with {code}: {output}")
    return ends


_LIMIT = "import resource; resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n"
_SLEEP = "import time; time.sleep(100)\n"
_HUNGRY = {
    "Python": "held = b'x' * (4 << 30)",
    "NumPy": "import numpy; numpy.ones(1 << 30)",
    "TensorFlow": "import tensorflow as tf; tf.ones([1 << 30])",
}


def starve(kind: str) -> Row:
    """Has one worker of two want more memory than it may have; the job ends, and says why."""
    row = Row("a worker without memory")
    who = "import json, os; me = json.loads(os.environ['TF_CONFIG'])['task']['index']\n"
    harm = f"if me == 1:\n    {_LIMIT}    {_HUNGRY[kind]}\n{_SLEEP}"
    row.tried += 1
    with _new_job(sys.executable) as job:
        code, output = job.finish(job.start("--workers", 2, job.script(who + harm)), 90)
        is_said = "worker 1 failed first" in output and "it ran out of memory" in output
        row.left += _left(job)
        row.survived += bool(code and is_said)
        if not (code and is_said):
            row.errors.append(f"{kind}: exit code {code}: {output[-500:]}")
    return row


def disturb(row: Row, hosts: TwoHosts, kind: str, name: str, whole: set[str]) -> None:
    """Harms the network between two workers; they go on, or end and name each other.

    TensorFlow's collectives may give a host up that is away for a while.
    """
    is_cut, may_end = name == "cut", (kind, name) == ("tensorflow", "back")
    steps = 400 if is_cut and kind == "async" else 30
    ended = network_faults.train(hosts, kind, getattr(network_faults, name), 200.0, steps)
    row.tried += 1
    good = []
    for each in ended:
        goes_on = not is_cut or (kind == "async" and each.task.index == 0)
        if goes_on and not (may_end and each.code):
            good.append(each.code == 0 and bool(each.weights))
            row.lost += bool(whole and each.weights and each.weights not in whole)
        else:
            good.append(each.code not in (0, None) and network_faults.names_the_other(hosts, each))
            row.seconds.append(each.seconds)
        row.left += each.code is None
        if not good[-1]:
            row.errors.append(f"{each.task}: exit code {each.code}: {each.output[-500:]}")
    row.survived += all(good)


def disturb_all(short: bool) -> list[Row]:
    """Harms the network in all ways, one at a time, where two hosts can be made."""
    if reason := missing():
        print(f"Left out: faults of the network, for {reason}.", flush=True)
        return []
    rows = []
    faults = {"cut": "a host cut off", "back": "a host cut off for 15 s", "slow": "200 ms, 5% lost"}
    with TwoHosts.made() as hosts:
        for kind in ["horovod"] if short else ["horovod", "tensorflow", "sync", "async"]:
            whole: set[str] = set()
            if not short and kind != "async":
                undisturbed = network_faults.train(hosts, kind, network_faults.none, 200.0)
                whole = {each.weights for each in undisturbed}
            for name in ["cut"] if short else faults:
                rows.append(Row(f"network: {faults[name]}, {kind}"))
                disturb(rows[-1], hosts, kind, name, whole)
                _tell(rows[-1])
    return rows


def all_kills(
    pool: Executor, ways: Sequence[str], in_save: bool, short: bool, seed: int, python: str
) -> Iterator[list[Future[Row]]]:
    """Has each kind of process killed, of jobs with these of `WAYS`."""
    names = [_SHORT_WAY] if short else ways
    whole = {name: pool.submit(undisturbed, name, python) for name in names}
    for name in names:
        victims = WAYS[name].victims
        attempts: dict[str, list[Future[Row]]] = {victim: [] for victim in victims}
        count = len(victims) if short else _KILLS
        for number, victim in enumerate(itertools.islice(itertools.cycle(victims), count)):
            choices = f"{seed} {name} {number}"
            ends = whole[name].result()
            attempt = pool.submit(kill, victim, name, choices, ends, python, in_save)
            attempts[victim].append(attempt)
        yield from attempts.values()


def _submit(
    pool: Executor,
    kinds: Sequence[str],
    ways: Sequence[str],
    short: bool,
    seed: int,
    python: str,
) -> Iterator[list[Future[Row]]]:
    """Starts all faults of these kinds but those of the network; yields the attempts of a row."""
    if "inputs" in kinds:
        yield [pool.submit(fuzz, 2_000 if short else 100_000, seed)]
    if "files" in kinds:
        yield [pool.submit(harm_files, 30 if short else 300, seed)]
    if "memory" in kinds:
        yield [pool.submit(starve, kind) for kind in list(_HUNGRY)[: 1 if short else 3]]
    if "servers" in kinds:
        yield from all_restarts(pool, restart_servers, short, seed, python)
    if "workers" in kinds:
        yield from all_restarts(pool, restart_workers, short, seed, python)
    if "resumes" in kinds:
        for kind in ["tf.data"] if short else ["tf.data", "read_files"]:
            for workers in [2] if short else [1, 2]:
                yield [pool.submit(resume, workers, kind, python)]
    if "members" in kinds:
        for mode in ["half_async"] if short else ["half_async", "async", "geo"]:
            yield [pool.submit(come_and_go, mode, 40 if short else 600, f"{seed} {mode}", python)]
    if "saves" in kinds:
        saving = [way for way in _SAVING_WAYS if way in ways]
        yield from all_kills(pool, saving, True, short, seed, python)
    if "kills" in kinds:
        yield from all_kills(pool, ways, False, short, seed, python)


def _forking(stack: contextlib.ExitStack) -> str:
    """Returns a Python that has imported TensorFlow, which is half of a short job's work."""
    server = ForkServer(Path(stack.enter_context(tempfile.TemporaryDirectory())))
    stack.callback(server.close)
    return server.python


def main() -> int:
    """Does all harm, prints the table and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="a few of each, in under 4 minutes")
    parser.add_argument("--only", nargs="+", default=_KINDS, choices=_KINDS, help="some kinds")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS,
                        help="some ways to train, of those that are killed")  # fmt: skip
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--python", help="what runs the jobs; by default forks that have "
                        "imported TensorFlow")  # fmt: skip
    arguments = parser.parse_args()
    short = arguments.short
    print(f"seed: {arguments.seed}; again: make faults SEED={arguments.seed}"
          f"{' SHORT=1' if short else ''}", flush=True)  # fmt: skip
    rows = []
    with contextlib.ExitStack() as stack:
        python = arguments.python or _forking(stack)
        # New processes: a fork of one with threads may wait for a lock that nobody frees.
        processes = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(_AT_ONCE, processes)
        stack.callback(pool.shutdown, cancel_futures=True)
        network = [pool.submit(disturb_all, short)] if "network" in arguments.only else []
        for attempts in list(
            _submit(pool, arguments.only, arguments.ways, short, arguments.seed, python)
        ):
            row = attempts[0].result()
            for attempt in attempts[1:]:
                row.add(attempt.result())
            rows.append(row)
            _tell(row)
        rows += [row for each in network for row in each.result()]
    print("| Fault | Tried | Went on or ended | Noticed: median, max | Lost | Left behind |")
    print("|---|---|---|---|---|---|")
    print(*rows, sep="\n")
    return any(row.tried != row.survived or row.lost or row.left for row in rows)


if __name__ == "__main__":
    sys.exit(main())
