"""Jobs on two hosts whose network fails while they train: what came of each process, and when."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.job import ROOT
from tests.support.two_hosts import TwoHosts, Wire
from tf_config import Address, ClusterSpec, Task, TFConfig

PROGRAM = ROOT / "tests" / "distributed" / "over_network.py"
MODES = ("sync", "async", "half_async", "geo")
BACK_AFTER_SECONDS = 15.0
DELAY_SECONDS, LOSS = 0.2, 0.05
_START_SECONDS = 200.0
_STEP = "step 5"
_PORT = 23600


def cut(wire: Wire) -> None:
    """A host is cut off, for good."""
    wire.is_cut = True


def back(wire: Wire) -> None:
    """A host is cut off for a while."""
    wire.is_cut = True
    threading.Timer(BACK_AFTER_SECONDS, setattr, [wire, "is_cut", False]).start()


def slow(wire: Wire) -> None:
    """The network loses one frame of twenty and takes 200 ms for the others."""
    wire.delay, wire.loss = DELAY_SECONDS, LOSS


def none(wire: Wire) -> None:
    """Nothing happens."""


@dataclass
class Ended:
    """What came of a process.

    Attributes:
      task: which one it was.
      code: its exit code; None if it had to be killed.
      seconds: after the fault.
      output: what it printed.
    """

    task: Task
    code: int | None
    seconds: float
    output: str

    @property
    def weights(self) -> str:
        """The digest of the weights that it ended with; "" if it did not."""
        found = [line.split()[1:] for line in self.output.splitlines() if line[:8] == "weights "]
        return found[0][0] if found and found[0][1] == "True" else ""


@dataclass
class _Running:
    task: Task
    popen: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    ended: float = 0.0

    def read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            self.lines.append(line)
        self.popen.stdout.close()
        self.popen.wait()
        self.ended = time.monotonic()

    def has(self, text: str) -> bool:
        return any(line.startswith(text + "\n") for line in list(self.lines))


def train(
    hosts: TwoHosts, kind: str, fault: Callable[[Wire], None], within: float, steps: int = 30
) -> list[Ended]:
    """Trains a worker on each host, without a launcher; the network fails after some steps.

    Args:
      hosts: where; a server is beside the first worker.
      kind: what the workers communicate by, or the mode of the servers.
      fault: what happens to the network.
      within: seconds after which a process that goes on is killed.
      steps: of training.

    Returns:
      What came of the workers.
    """
    hosts.wire.delay = hosts.wire.loss = 0.0
    hosts.wire.is_cut = False
    with tempfile.TemporaryDirectory() as directory:
        running = [_start(hosts, kind, task, steps, Path(directory)) for task in _tasks(kind)]
        readers = [threading.Thread(target=each.read, daemon=True) for each in running]
        for reader in readers:
            reader.start()
        workers = [each for each in running if each.task.type == "worker"]
        try:
            _wait(lambda: all(w.has(_STEP) or w.ended for w in workers), _START_SECONDS)
            began = time.monotonic()
            fault(hosts.wire)
            _wait(lambda: all(w.ended for w in workers), within)
            codes = [w.popen.poll() for w in workers]
        finally:
            for each in running:
                each.popen.kill()
            for reader in readers:
                reader.join(10)
    return [
        Ended(w.task, code, w.ended - began, "".join(w.lines))
        for w, code in zip(workers, codes, strict=True)
    ]


def names_the_other(hosts: TwoHosts, ended: Ended) -> bool:
    """Returns whether a process, or TensorFlow in it, named the host or the worker it lost."""
    other = 1 - ended.task.index
    said = ended.output.partition(_STEP + "\n")[2]
    names = hosts.addresses[other], f"worker {other}", f"/job:worker/replica:0/task:{other}"
    return any(name in said for name in names)


def _tasks(kind: str) -> list[Task]:
    servers = [Task("ps", 0)] if kind in MODES else []
    return [*servers, Task("worker", 0), Task("worker", 1)]


def _start(hosts: TwoHosts, kind: str, task: Task, steps: int, directory: Path) -> _Running:
    tasks = _tasks(kind)
    at = {each: Address(hosts.addresses[each.index], _PORT + n) for n, each in enumerate(tasks)}
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "OMP_NUM_THREADS": "1",
        "TF_CONFIG": TFConfig(ClusterSpec(at), task).to_json(),
    }
    program = [PROGRAM, steps, *([kind] if kind in MODES else [])]
    if kind not in MODES:
        environ["KERAS_STRATEGIES_COMMUNICATION"] = kind
    if task.type == "ps":
        program = ["-m", "strategies.serve"]
    command = [*hosts.on(task.index), sys.executable, *map(str, program)]
    popen = subprocess.Popen(
        command, env=environ, cwd=directory, text=True, errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return _Running(task, popen)


def _wait(is_so: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not is_so() and time.monotonic() < end:
        time.sleep(0.05)
