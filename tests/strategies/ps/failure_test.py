"""What becomes of `fit` when a worker or a server is killed, or a server is paused."""

import json
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
import tensorflow as tf

from strategies.compat.tensorflow import Session
from strategies.ps import connection as client
from strategies.ps import watchdog_store as watching
from tests.support.job import HANGING_SECONDS
from tf_config import Address, Task, TFConfig, local_cluster
from tf_config.builder import free_ports

SCRIPT = Path(__file__).resolve().parents[2] / "distributed" / "steady.py"
LOST_ANSWERS = SCRIPT.with_name("servers_lost_answers.py")
LOCK = SCRIPT.with_name("server_lock.py")
STEPS = 20  # of an epoch of the script
SLOW = pytest.mark.slow


class ByHand:
    """Two workers and a server, each started by itself as on machines of their own."""

    def __init__(self, job, mode):
        self.job, self.mode = job, mode
        self.cluster = local_cluster(workers=2, ps=1)

    def serve(self):
        return self._start(Task("ps", 0), "-m", "strategies.serve")

    def work(self, index, epochs=10_000):
        return self._start(Task("worker", index), SCRIPT, self.mode, self.job.directory, epochs)

    def _start(self, task, *command):
        config = TFConfig(self.cluster, task).to_json()
        variables = ["env", f"TF_CONFIG={config}", "OMP_NUM_THREADS=1"]
        return self.job.popen([*variables, sys.executable, *map(str, command)])

    def losses(self, index):
        """Returns the losses of a worker's epochs so far."""
        path = self.job.directory / f"worker-{index}"
        lines = path.read_text().splitlines() if path.exists() else []
        return [float(line.split()[1]) for line in lines]

    def wait_for_epochs(self, index, count, within=200):
        self.job.wait_for(lambda: len(self.losses(index)) >= count, within)

    def stop(self, *processes):
        """Ends training; fails if a process does not end well."""
        (self.job.directory / "stop").touch()
        for process in processes:
            output, _ = process.communicate(timeout=100)
            assert process.returncode == 0, output


@SLOW
def test_a_server_at_two_addresses_is_told(job):
    (port,) = free_ports(1)
    script = job.script("import strategies; strategies.ParameterServerStrategy(start_timeout=60)")
    cluster = {"worker": ["127.0.0.1:1"], "ps": [f"127.0.0.1:{port}", f"127.0.0.2:{port}"]}

    def started(kind, *command):
        config = json.dumps({"cluster": cluster, "task": {"type": kind, "index": 0}})
        return job.popen(["env", f"TF_CONFIG={config}", sys.executable, *command])

    server, worker = started("ps", "-m", "strategies.serve"), started("worker", str(script))
    output, _ = worker.communicate(timeout=100)
    assert worker.returncode == 1, output
    assert f"ps 0 answers at 127.0.0.2:{port}, the address of ps 1" in output
    server.terminate()
    server.communicate(timeout=30)


@SLOW
@pytest.mark.parametrize("mode", ["async", "half_async", "geo"])
def test_a_killed_worker_is_not_missed_and_comes_back(job, mode):
    tasks = ByHand(job, mode)
    server, first, second = tasks.serve(), tasks.work(0), tasks.work(1)
    tasks.wait_for_epochs(0, 3)
    tasks.wait_for_epochs(1, 3)
    second.kill()
    second.wait()
    before = len(tasks.losses(0))
    tasks.wait_for_epochs(0, before + 5)
    epochs = len(tasks.losses(1))
    second = tasks.work(1)
    tasks.wait_for_epochs(1, epochs + 5)
    losses, again = tasks.losses(0), tasks.losses(1)[epochs:]
    assert losses[-1] < 0.9 * losses[before] < losses[0]
    assert again[0] < 0.9 * tasks.losses(1)[0], "it begins with the present variables"
    assert again[-1] < again[0]
    tasks.stop(first, second, server)


@SLOW
@pytest.mark.parametrize("mode", ["sync", "async", "half_async", "geo"])
def test_workers_name_a_server_that_is_killed(job, mode):
    tasks = ByHand(job, mode)
    server, *workers = tasks.serve(), tasks.work(0), tasks.work(1)
    tasks.wait_for_epochs(0, 3)
    tasks.wait_for_epochs(1, 3)
    server.kill()
    start = time.monotonic()
    for worker in workers:
        output, _ = worker.communicate(timeout=100)
        assert worker.returncode != 0
        assert time.monotonic() - start < 20  # 2.1 s were seen on an idle machine
        assert f"ps 0 ({tasks.cluster.addresses[Task('ps', 0)]}) is gone: " in output, output
        assert not any(f"gone: {late}" in output for late in ("its host has", "no answer in"))


class FakeServer:
    """What is known of a server at an address where nobody listens."""

    def __init__(self, is_lost):
        self.address = Address("127.0.0.1", free_ports(1)[0])
        self.is_lost = is_lost

    def is_there(self):
        return False


def test_a_server_that_is_found_gone_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(watching, "_ANSWER_SECONDS", 100.0)
    entries = watching.ServerEntries(FakeServer(is_lost=False))
    start = time.monotonic()
    assert not entries.put("key", b"value")
    assert time.monotonic() - start < 50
    client.close([entries.session], entries._server)


def test_a_server_that_is_lost_is_not_asked(monkeypatch):
    entries = watching.ServerEntries(FakeServer(is_lost=True))
    asked = []
    monkeypatch.setattr(entries.session, "run", lambda *_: asked.append(1))
    assert not entries.put("key", b"value")
    assert entries.get("key") is None
    assert not asked


class FakeSession:
    """A session whose end takes until `is_closed` is set, and a call of it until `has_answered`."""

    def __init__(self):
        self.closing, self.is_closed, self.has_answered = (threading.Event() for _ in range(3))
        self.caller = threading.Thread(target=self.has_answered.wait)
        self.caller.start()

    def close(self):
        self.closing.set()
        self.is_closed.wait()

    def callers(self):
        return (self.caller,)

    def end(self):
        self.is_closed.set()
        self.has_answered.set()


def test_sessions_with_a_server_that_is_gone_are_hardly_waited_for(monkeypatch):
    monkeypatch.setattr(client, "_CLOSE_SECONDS", 100.0)
    session, start = FakeSession(), time.monotonic()
    client.close([session], FakeServer(is_lost=True))
    assert time.monotonic() - start < 50
    assert session.closing.is_set()
    session.end()


@pytest.mark.parametrize("last", ["is_closed", "has_answered"])
def test_sessions_are_closed_and_their_calls_have_ended(monkeypatch, last):
    """Python aborts if a thread comes back from TensorFlow while it shuts down."""
    monkeypatch.setattr(client, "_CHECK_EVERY_SECONDS", 0.01)
    monkeypatch.setattr(client, "address_state", lambda _: "taken")
    session = FakeSession()
    closing = threading.Thread(target=client.close, args=([session], FakeServer(is_lost=False)))
    closing.start()
    for name in {"is_closed", "has_answered"} - {last}:
        getattr(session, name).set()
    closing.join(3)  # more than was once waited for in all
    assert closing.is_alive()
    getattr(session, last).set()
    closing.join()


def test_a_server_that_does_not_close_a_session_is_waited_for_in_vain(monkeypatch):
    monkeypatch.setattr(client, "_CHECK_EVERY_SECONDS", 0.01)
    monkeypatch.setattr(client, "_CLOSE_SECONDS", 0.1)
    monkeypatch.setattr(client, "address_state", lambda _: "taken")
    session = FakeSession()
    client.close([session], FakeServer(is_lost=False))
    assert not session.is_closed.is_set()
    session.end()


def test_a_session_names_the_threads_in_its_calls():
    session = Session(graph=tf.Graph())
    with session.graph.as_default():
        queue = tf.queue.FIFOQueue(1, tf.int32)
        taken, put = queue.dequeue(), queue.enqueue(1)
    caller = threading.Thread(target=session.run, args=(taken,))
    caller.start()
    while caller not in session.callers():
        time.sleep(0.01)
    session.run(put)
    caller.join()
    assert session.callers() == ()
    session.close()


def test_training_goes_on_from_the_last_checkpoint(forked):
    """The launcher starts all again; the epochs that were trained are not trained again."""
    epochs = 12
    process = forked.start(
        "--workers", 2, "--ps", 1, "--max-restarts", 1, "--server-saves", 0,
        SCRIPT, "async", forked.directory, epochs, "checkpoint",
    )  # fmt: skip
    path = forked.directory / "worker-0"
    forked.wait_for(lambda: path.exists() and len(path.read_text().splitlines()) >= 4, 120)
    (server,) = [p for p in forked.processes() if "strategies.serve" in p.cmdline()]
    server.kill()
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    lines = [line.split() for line in path.read_text().splitlines()]
    numbers = [int(epoch) for epoch, _, _ in lines]
    assert numbers[-1] == epochs - 1
    assert numbers.count(0) == 1 and len(numbers) <= epochs + 1, numbers
    losses = [float(loss) for _, loss, _ in lines]
    assert losses[-1] < losses[0]


@SLOW
@pytest.mark.parametrize("mode", ["async", "half_async", "geo"])
def test_the_launcher_restarts_a_killed_worker_alone(forked, mode):
    def lines(name):
        path = forked.directory / name
        return path.read_text().splitlines() if path.exists() else []

    process = forked.start(
        "--workers", 2, "--ps", 1, "--max-restarts", 4, SCRIPT, mode, forked.directory, 10_000
    )

    def wait_for_epochs(index):
        name = f"worker-{index}"
        enough = len(lines(name)) + 3
        forked.wait_for(lambda: len(lines(name)) >= enough, HANGING_SECONDS)

    for index in (1, 0, 1):  # the first worker, too
        wait_for_epochs(index)
        os.kill(int(lines(f"pids-{index}")[-1]), signal.SIGKILL)
    wait_for_epochs(1)
    (forked.directory / "stop").touch()
    code, output = forked.finish(process, HANGING_SECONDS)
    assert code == 0, output
    assert output.count(" alone, the other tasks continue") == 3
    assert (len(lines("pids-0")), len(lines("pids-1"))) == (2, 3)
    losses = [float(line.split()[1]) for line in lines("worker-1")]
    assert losses[-1] < 0.9 * losses[0]
    forked.assert_nothing_left()


@SLOW
@pytest.mark.parametrize("mode", ["sync", "async", "half_async", "geo"])
def test_a_paused_server_loses_nothing(job, mode):
    """Twenty seconds without an answer: no error, and every step is counted in the end."""
    epochs = 20
    tasks = ByHand(job, mode)
    server, *workers = tasks.serve(), tasks.work(0, epochs), tasks.work(1, epochs)
    tasks.wait_for_epochs(0, 3)
    server.send_signal(signal.SIGSTOP)
    time.sleep(20)
    done = len(tasks.losses(0))
    assert done < epochs
    server.send_signal(signal.SIGCONT)
    outputs = []
    for process in (*workers, server):
        outputs.append(process.communicate(timeout=100)[0])
        assert process.returncode == 0, outputs[-1]
    total = epochs * STEPS * (2 if mode in ("async", "half_async") else 1)
    assert any(f"iterations at the end: {total}" in output for output in outputs), outputs
    assert tasks.losses(0)[-1] < tasks.losses(0)[0]


@SLOW
@pytest.mark.parametrize("mode", ["sync", "async", "half_async", "geo"])
def test_a_paused_server_is_given_up_after_the_step_timeout(job, mode):
    job.environ["KERAS_STRATEGIES_STEP_TIMEOUT"] = "8"
    tasks = ByHand(job, mode)
    server, *workers = tasks.serve(), tasks.work(0), tasks.work(1)
    tasks.wait_for_epochs(0, 3)
    tasks.wait_for_epochs(1, 3)
    server.send_signal(signal.SIGSTOP)
    start = time.monotonic()
    for worker in workers:
        output, _ = worker.communicate(timeout=100)
        assert worker.returncode != 0
        assert time.monotonic() - start < 40
        assert "--step-timeout" in output, output
        assert f"ps 0 ({tasks.cluster.addresses[Task('ps', 0)]})" in output, output


@SLOW
@pytest.mark.parametrize(
    ("mode", "workers"),
    [
        ("half_async", 1),
        pytest.param("async", 1, marks=SLOW),
        pytest.param("geo", 1, marks=SLOW),
        pytest.param("sync", 2, marks=SLOW),
    ],
)
def test_lost_answers_of_a_server_change_nothing(forked, mode, workers):
    def train(lost):
        code, output = forked.run("--workers", workers, "--ps", 1, LOST_ANSWERS, mode, lost)
        assert code == 0, output
        assert f"[worker 0] lost {lost}\n" in output, output
        return sorted(re.findall(r"weights \w+ steps 30", output))

    lossy = train(6)
    if mode != "async":  # its steps use values that depend on time
        assert len(lossy) == workers
        assert lossy == train(0)


def test_half_of_a_change_is_never_used(forked):
    code, output = forked.finish(forked.popen([forked.python, str(LOCK)]), timeout=100)
    assert code == 0, output
    found = dict(line.split(": ", 1) for line in output.splitlines() if ": " in line)
    one, three = ([f"np.int64({n})"] * 2 for n in (1, 3))
    assert found["a read"] == f"interrupted None [{', '.join(one)}]"
    assert found["a change before it has the lock"] == f"interrupted [{', '.join(one)}]"
    assert found["a change made twice"] == f"[{', '.join(three)}]"
    assert found["half a change"] == "interrupted"
    for later in ("a read after it", "a change after it", "a worker that waits at the barrier"):
        assert "Received: a change on ps 0 (127.0.0.1:" in found[later], output
    assert found["the last to arrive"] == "interrupted"
