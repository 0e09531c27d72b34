"""Processes that know only their number; here they are threads."""

import contextlib
import json
import socket
import sys
import threading
import time

import pytest

from tf_config import Address, ClusterConfigError, Task
from tf_config.builder import free_ports
from tf_config.rendezvous import Participant, check_url, rendezvous
from tf_config.roles import Roles


@pytest.fixture(params=["file", "tcp"])
def url(request, tmp_path):
    if request.param == "file":
        return f"file://{tmp_path}/meeting%20place"
    return f"tcp://localhost:{free_ports(1)[0]}"


class RendezvousConfig:
    """Some processes of one meeting: what each got, or the error it ended with."""

    def __init__(self, url, timeout=20.0):
        self.url, self.timeout = url, timeout
        self.results, self.notes, self._threads = {}, {}, []

    def come(self, roles, rank, name=None, leader=0, address=None):
        name = rank if name is None else name
        self.notes[name] = []
        thread = threading.Thread(target=self._come, args=(roles, rank, name, leader, address))
        self._threads.append(thread)
        thread.start()

    def _come(self, roles, rank, name, leader, address):
        note = self.notes[name].append
        try:
            participant = Participant(roles, rank, leader)
            self.results[name] = rendezvous(
                self.url, participant, self.timeout, note, address=address
            )
        except ClusterConfigError as error:
            self.results[name] = error

    def end(self):
        for thread in self._threads:
            thread.join(60)
        return self.results


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 2, 1, 3, 0)])
def test_all_get_the_same_cluster(url, order):
    roles = Roles(workers=2, ps=1, chief=True, evaluator=True)
    meeting = RendezvousConfig(url)
    for rank in order:
        meeting.come(roles, rank)
        time.sleep(0.1)
    results = meeting.end()
    assert [results[rank].task for rank in range(5)] == list(roles.tasks)
    (cluster,) = {result.cluster for result in results.values()}
    assert list(cluster.addresses) == list(roles.tasks[:-1])
    assert len({address.host for address in cluster.addresses.values()}) == 1
    assert len({address.port for address in cluster.addresses.values()}) == 4


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0)])
def test_a_server_with_an_address_of_its_own_holds_the_meeting(url, order):
    roles = Roles(workers=2, ps=2)
    addresses = [Address("127.0.0.1", port) for port in free_ports(2)]
    meeting = RendezvousConfig(url)
    for rank in order:
        own = addresses[rank - 2] if rank >= 2 else None
        meeting.come(roles, rank, leader=2, address=own)
    results = meeting.end()
    assert [results[rank].task for rank in range(4)] == list(roles.tasks)
    (cluster,) = {result.cluster for result in results.values()}
    assert [cluster.addresses[task] for task in roles.tasks[2:]] == addresses


def test_one_task_alone(url):
    meeting = RendezvousConfig(url)
    meeting.come(Roles(1), 0)
    assert meeting.end()[0].task == Task("worker", 0)


def test_a_task_that_never_comes_is_named_by_all(url):
    meeting = RendezvousConfig(url, timeout=6.0)
    for rank in (0, 2):
        meeting.come(Roles(3), rank)
    for result in meeting.end().values():
        assert "within 6 s. Received: still waiting for worker 1 (2 of 3 have connected)" in str(
            result
        )
    assert meeting.notes[0] == ["waiting for worker 1 (2 of 3 have connected)"]


def test_a_first_task_that_never_comes_is_said_so(url):
    meeting = RendezvousConfig(url, timeout=1.0)
    meeting.come(Roles(2), 1)
    assert "within 1 s" in str(meeting.end()[1])


def test_a_meeting_that_failed_does_not_disturb_the_next_one(url):
    failed = RendezvousConfig(url, timeout=1.5)
    failed.come(Roles(3), 0)
    failed.come(Roles(3), 1)
    assert all(isinstance(result, ClusterConfigError) for result in failed.end().values())
    meeting = RendezvousConfig(url)
    for rank in (2, 1, 0):
        meeting.come(Roles(3), rank)
        time.sleep(0.3)
    assert {result.task.index for result in meeting.end().values()} == {0, 1, 2}


def test_files_that_a_killed_job_left_are_noticed_and_mislead_nobody(tmp_path):
    old = {"token": "old"}
    (tmp_path / "first.json").write_text(json.dumps(old))
    (tmp_path / "1.json").write_text('{"first": "old", "report": {"token": "x"}}')
    stale = {"cluster": {"worker": ["gone:1", "gone:2"]}, "tokens": ["old", "x"]}
    (tmp_path / "cluster.json").write_text(json.dumps(stale))
    meeting = RendezvousConfig(f"file://{tmp_path}")
    meeting.come(Roles(2), 1)
    time.sleep(0.5)
    meeting.come(Roles(2), 0)
    (cluster,) = {result.cluster for result in meeting.end().values()}
    assert "gone" not in {address.host for address in cluster.addresses.values()}
    assert meeting.notes[0] == [f"{tmp_path} holds files of an earlier job; they are replaced"]
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_was_made_for_one_job_is_removed(tmp_path):
    meeting = RendezvousConfig(f"file://{tmp_path}/.tf-config-7")
    for rank in (0, 1):
        meeting.come(Roles(2), rank)
    meeting.end()
    assert list(tmp_path.iterdir()) == []


def test_two_processes_that_say_they_are_the_same_task(url):
    meeting = RendezvousConfig(url, timeout=20.0)
    meeting.come(Roles(3), 0)
    for name in ("a", "b"):
        meeting.come(Roles(3), 1, name)
    errors = [str(result) for result in meeting.end().values()]
    assert len(errors) == 3
    assert any("Received: two processes for worker 1" in error for error in errors), errors


def test_processes_that_were_told_different_tasks(url):
    meeting = RendezvousConfig(url)
    meeting.come(Roles(2), 0)
    meeting.come(Roles(3), 1)
    rule = "All processes of a job must be started with the same tasks."
    received = f"{rule} Received: 2 ('worker 0, worker 1') in the first process, 3"
    errors = [str(error) for error in meeting.end().values()]
    assert all(received in error for error in errors), errors


def test_no_task_takes_the_port_of_the_meeting(monkeypatch):
    port, free = free_ports(2)
    monkeypatch.setattr(
        sys.modules["tf_config.rendezvous.rendezvous"], "PORTS", [port - 1, port, free]
    )
    monkeypatch.setattr("random.SystemRandom.sample", lambda self, ports, count: ports)
    meeting = RendezvousConfig(f"tcp://localhost:{port}")
    meeting.come(Roles(1), 0)
    assert meeting.end()[0].cluster.addresses[Task("worker", 0)].port == free


def test_strangers_at_the_door_are_ignored():
    (port,) = free_ports(1)
    meeting = RendezvousConfig(f"tcp://127.0.0.1:{port}")
    meeting.come(Roles(2), 0)
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"{}\n", b'{"rank": 1}\n', b"[" * 9999 + b"\n", b""):
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                with socket.create_connection(("127.0.0.1", port)) as stranger:
                    stranger.sendall(data)
                break
    meeting.come(Roles(2), 1)
    assert {result.task.index for result in meeting.end().values()} == {0, 1}


def test_the_first_task_elsewhere_or_a_taken_port_is_said():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        meeting = RendezvousConfig(f"tcp://127.0.0.1:{taken.getsockname()[1]}")
        meeting.come(Roles(1), 0)
        assert "choose another port" in str(meeting.end()[0])
    meeting = RendezvousConfig("tcp://203.0.113.1:2222")
    meeting.come(Roles(1), 0)
    assert "must be that of the host that the first task runs on" in str(meeting.end()[0])


def test_a_directory_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    meeting = RendezvousConfig(f"file://{tmp_path}/file")
    meeting.come(Roles(1), 0)
    assert "must be writable by all tasks" in str(meeting.end()[0])


@pytest.mark.parametrize(
    "url", ["", "file://", "file://host/x", "tcp://", "tcp://h", "tcp://h:1/x", "http://h:1", "/x"]
)
def test_wrong_urls(url):
    with pytest.raises(ClusterConfigError):
        check_url(url)


def test_a_rank_beyond_the_last_is_refused():
    with pytest.raises(ClusterConfigError, match="0 to 1 in a job of 2 processes. Received: 2"):
        Participant(Roles(2), 2)


@pytest.mark.parametrize("rank", [-1, 2, 10**30])
def test_a_number_that_no_task_has_ends_the_meeting_in_words(rank):
    (port,) = free_ports(1)
    meeting = RendezvousConfig(f"tcp://127.0.0.1:{port}")
    meeting.come(Roles(2), 0)
    tasks = ["worker 0", "worker 1"]
    report = {"rank": rank, "tasks": tasks, "host": "a", "port": 1, "token": "x"}
    for _ in range(100):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as other:
            other.sendall(f" {json.dumps(report)}\n".encode())
            break
        time.sleep(0.05)
    assert "must be from 0 to 1 in a job of 2 processes. Received: " in str(meeting.end()[0])


@pytest.mark.parametrize(
    "text", ["{}", '{"report": 3}', '{"report": {"rank": 1e400}}', "[" * 10**5]
)
def test_a_file_that_no_task_wrote_is_named_or_passed_over(tmp_path, text):
    meeting = RendezvousConfig(f"file://{tmp_path}", timeout=1.5)
    meeting.come(Roles(2), 0)
    while not (tmp_path / "first.json").exists():
        time.sleep(0.01)
    token = json.loads((tmp_path / "first.json").read_text())["token"]
    (tmp_path / "1.json").write_text(text.replace("{", f'{{"first": "{token}", ', 1)
                                     .replace(", }", "}"))  # fmt: skip
    message = str(meeting.end()[0])
    named = "1.json', which was not written by a task"
    assert named in message or "still waiting for worker 1" in message
