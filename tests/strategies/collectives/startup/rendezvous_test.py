"""Workers that meet, and that do not."""

import socket
import threading
import time

import pytest

from strategies.collectives import horovod as horovod_collectives
from strategies.collectives.startup.rendezvous import ARRIVALS, wait_for_all
from tf_config import Address, ClusterConfigError, ClusterSpec, Task, TFConfig, local_cluster
from tf_config.builder import free_ports
from tf_config.rendezvous.http_store import HttpStore

START = "import strategies; strategies.MultiWorkerMirroredStrategy(start_timeout=7)"
QUICKLY = f"from absl import logging; logging.set_verbosity('debug'); {START.replace('7', '4')}"


def start_worker(forked, cluster, task, code=START):
    forked.environ["TF_CONFIG"] = TFConfig(cluster, task).to_json()
    return forked.popen([forked.python, "-c", code])


@pytest.mark.usefixtures("communication")
@pytest.mark.parametrize(
    ("communication", "missing"),
    [
        ("tensorflow", 0),
        pytest.param("horovod", 1, marks=pytest.mark.slow),
        pytest.param("horovod", 0, marks=pytest.mark.slow),
        pytest.param("tensorflow", 1, marks=pytest.mark.slow),
    ],
    indirect=["communication"],
)
def test_a_worker_that_does_not_come_is_named_until_the_time_is_up(forked, missing):
    cluster = local_cluster(workers=2)
    tasks = cluster.training_tasks
    worker = start_worker(forked, cluster, tasks[1 - missing])
    output, _ = worker.communicate(timeout=60)
    assert worker.returncode == 1
    absent = f"worker {missing} ({cluster.addresses[tasks[missing]]})"
    assert f"worker {1 - missing} waits for {absent}: 5 s of 7 s." in output
    assert "TimeoutError: All workers must connect at the start of training within 7 s." in output
    assert f"Received at worker {1 - missing}: nothing from {absent}." in output


def test_the_launchers_start_timeout_reaches_the_workers(forked):
    script = forked.script(
        "import json, os, time\n"
        "if json.loads(os.environ['TF_CONFIG'])['task']['index'] == 1: time.sleep(60)\n"
        "import strategies; strategies.from_tf_config()\n"
    )
    start = time.monotonic()
    code, output = forked.run("--workers", 2, "--start-timeout", 3, script)
    assert time.monotonic() - start < 30
    assert code == 1
    assert "within 3 s. Received at worker 0: nothing from worker 1 (127.0.0.1:" in output
    assert "tf-config: worker 0 failed with exit code 1" in output
    forked.assert_nothing_left()


def test_two_processes_that_are_the_same_task_are_told_apart(forked):
    cluster = local_cluster(workers=2)
    workers = [start_worker(forked, cluster, Task("worker", 0)) for _ in range(2)]
    outputs = [worker.communicate(timeout=60)[0] for worker in workers]
    refused = [output for output in outputs if "Address already in use" in output]
    assert len(refused) == 1
    rule = "The first worker must be able to listen on its address in TF_CONFIG."
    assert f"{rule} Received: 127.0.0.1:" in refused[0]


def test_a_server_that_does_not_start_is_named_on_both_sides(forked):
    forked.hide_horovod()
    del forked.environ["KERAS_STRATEGIES_COMMUNICATION"]
    # Of two names: workers of one address share memory, and need no server.
    ports = free_ports(2, "127.0.0.1")
    hosts = zip(("127.0.0.1", "localhost"), ports, strict=True)
    cluster = ClusterSpec.from_dict({"worker": [f"{host}:{port}" for host, port in hosts]})
    first, second = cluster.training_tasks
    address = cluster.addresses[second]
    with socket.create_server((address.host, address.port)):
        workers = [start_worker(forked, cluster, task, QUICKLY) for task in (first, second)]
        waiting, failed = (worker.communicate(timeout=60)[0] for worker in workers)
    assert [worker.returncode for worker in workers] == [1, 1]
    assert f"able to listen on its address in TF_CONFIG. Received: {address} for worker 1" in failed
    assert "The servers of all workers must answer within 4 s." in waiting
    assert f"worker 0: no answer from worker 1 ({address})." in waiting
    assert "2 workers communicate by tensorflow: Horovod is hidden" in waiting
    assert "communicate by" not in failed


@pytest.fixture
def meeting():
    """Serves the store of a cluster of two, as the first worker does."""
    cluster = local_cluster(workers=2)
    first = cluster.training_tasks[0]
    server = horovod_collectives._serve(cluster.addresses[first], first)
    yield cluster
    server.shutdown()
    server.server_close()


def test_workers_of_one_host_need_neither_horovod_nor_a_server(forked):
    script = forked.script(
        "import sys, strategies, tensorflow as tf\n"
        "tf.constant(1)\n"  # which is too late for TensorFlow's own
        "strategy = strategies.from_tf_config()\n"
        "total = strategy.reduce('SUM', tf.constant(1), axis=None)\n"
        "print('sum', int(total), 'horovod' in sys.modules)\n"
    )
    code, output = forked.run("--workers", 2, script)
    assert code == 0, output
    assert output.count("sum 2 False") == 2


@pytest.mark.parametrize("first", ["shared_memory", "horovod"])
def test_a_second_strategy_may_communicate_in_another_way(forked, first):
    ways = [first, "horovod", "shared_memory", "auto"]
    script = forked.script(
        "import strategies, tensorflow as tf\n"
        f"for way in {ways}:\n"
        "    strategy = strategies.MultiWorkerMirroredStrategy(communication=way)\n"
        "    total = strategy.reduce('SUM', tf.constant(1), axis=None)\n"
        "    print('sum', int(total), type(strategy.extended.collectives._collectives).__name__)\n"
    )
    code, output = forked.run("--workers", 2, script)
    assert code == 0, output
    assert output.count("sum 2 SharedMemoryCollectives") == 2 * (2 + (first == "shared_memory"))
    assert output.count("sum 2 HorovodCollectives") == 2 * (1 + (first == "horovod"))


def test_a_second_job_is_refused(forked):
    script = forked.script(
        "import json, os, strategies\n"
        "strategies.from_tf_config()\n"
        "config = json.loads(os.environ['TF_CONFIG'])\n"
        "config['cluster']['worker'].reverse()\n"
        "os.environ['TF_CONFIG'] = json.dumps(config)\n"
        "strategies.from_tf_config()\n"
    )
    code, output = forked.run("--workers", 2, script)
    assert code == 1
    assert "cannot join more than one multi-worker job. Received: a second one" in output


def test_all_go_on_when_the_last_has_come(meeting):
    done = []

    def come(task):
        wait_for_all(meeting, task, timeout=20)
        done.append(task)

    threads = [threading.Thread(target=come, args=[task]) for task in meeting.training_tasks]
    threads[0].start()
    time.sleep(0.5)
    assert done == []
    threads[1].start()
    for thread in threads:
        thread.join(20)
    assert sorted(map(str, done)) == ["worker 0", "worker 1"]


def test_a_first_worker_that_is_started_again_finds_those_that_wait():
    cluster = local_cluster(workers=3)
    first, second, third = cluster.training_tasks

    def served():
        return horovod_collectives._serve(cluster.addresses[first], first)

    def waiting(task):
        thread = threading.Thread(target=wait_for_all, args=[cluster, task, 20.0], daemon=True)
        thread.start()
        return thread

    before, threads = served(), [waiting(second)]
    store = HttpStore(cluster.addresses[first], ARRIVALS)
    while store.get(second) is None:
        time.sleep(0.05)
    before.shutdown()
    before.server_close()
    server = served()
    threads += [waiting(first), waiting(third)]
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)
    server.shutdown()
    server.server_close()


def test_a_worker_of_another_cluster_is_refused(meeting):
    first, second = meeting.training_tasks
    other = ClusterSpec({**meeting.addresses, Task("worker", 2): local_address()})
    with pytest.raises(TimeoutError):
        wait_for_all(other, second, timeout=0.3)
    with pytest.raises(ClusterConfigError, match="Received: a different one on worker 1"):
        wait_for_all(meeting, first, timeout=5)


def test_a_worker_that_communicates_otherwise_is_refused(meeting):
    first, second = meeting.training_tasks
    with pytest.raises(TimeoutError):
        wait_for_all(meeting, second, 0.3, "tensorflow")
    with pytest.raises(ClusterConfigError, match="Received: tensorflow on worker 1, horovod here"):
        wait_for_all(meeting, first, 5, "horovod")


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        spec = ClusterSpec.from_dict({"worker": [f"127.0.0.1:{taken.getsockname()[1]}"]})
        (task,) = spec.training_tasks
        with pytest.raises(ClusterConfigError, match="Use a free port of this machine"):
            horovod_collectives._serve(spec.addresses[task], task)


def test_a_first_worker_whose_own_name_is_not_known_yet_listens_all_the_same():
    (port,) = free_ports(1, "")
    task = Task("worker", 0)
    server = horovod_collectives._serve(Address("no-such-host.invalid", port), task)
    try:
        socket.create_connection(("127.0.0.1", port), 5).close()
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("hosts", "name", "version", "fine"),
    [
        (["127.0.0.1", "127.0.0.1"], "no-such-host.invalid", "0.28.1", False),
        (["127.0.0.1", "127.0.0.1"], "localhost", "0.28.1", True),
        (["127.0.0.1", "10.0.0.7"], "localhost", "0.28.1", False),
        (["127.0.0.1", "10.0.0.7"], "10.0.0.3", "0.28.1", True),
        (["127.0.0.1", "10.0.0.7"], "no-such-host.invalid", "0.28.1+gloo.iface", True),
    ],
)
def test_a_machines_name_that_gloo_cannot_use(monkeypatch, hosts, name, version, fine):
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    spec = ClusterSpec.from_dict({"worker": [f"{h}:{n}" for n, h in enumerate(hosts, 1)]})
    check = horovod_collectives._check_hostname
    if fine:
        check(spec, Task("worker", 0), version)
    else:
        with pytest.raises(ClusterConfigError, match="Gloo of this build of Horovod .* requires"):
            check(spec, Task("worker", 0), version)


def test_horovods_place_follows_from_the_cluster():
    spec = ClusterSpec.from_dict(
        {"chief": ["127.0.0.1:1"], "worker": ["127.0.0.2:1", "127.0.0.1:2", "127.0.0.3:1"]}
    )
    places = {
        str(task): [
            int(horovod_collectives._environment(spec, task)[f"HOROVOD_{name}"])
            for name in (
                "RANK SIZE LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE".split()
            )
        ]
        for task in spec.training_tasks
    }  # fmt: skip
    assert places == {
        "chief 0": [0, 4, 0, 2, 0, 3],
        "worker 0": [1, 4, 0, 1, 1, 3],
        "worker 1": [2, 4, 1, 2, 0, 1],
        "worker 2": [3, 4, 0, 1, 2, 3],
    }


def local_address():
    return local_cluster().addresses[Task("worker", 0)]
