"""The secret of a job: who has it is answered, and it is written nowhere."""

import contextlib
import json
import os
import socket
import threading
import time

import pytest

from tf_config import Address, ClusterConfigError
from tf_config.builder import free_ports
from tf_config.cli import main
from tf_config.hosts import Host
from tf_config.launcher.job import JobSpec, shell_line
from tf_config.launcher.reports import CREATED, ENTERED, report
from tf_config.launcher.settings import SIDECAR_VARIABLE
from tf_config.launcher.sidecar import Sidecar
from tf_config.rendezvous import Participant, rendezvous
from tf_config.rendezvous.http_store import StoreServer, send_request
from tf_config.roles import Roles
from tf_config.secret import SECRET_VARIABLE, is_signed, secret_of, signature

OURS, OTHER = "0123456789abcdef", "0123456789abcdeX"


@contextlib.contextmanager
def serving(server):
    server.start()
    try:
        yield Address(*server.server_address)
    finally:
        server.shutdown()
        server.server_close()


def test_a_signature_is_of_one_message_of_one_secret():
    parts = b"PUT", b"/a", b"1"
    given = signature(OURS, *parts)
    assert is_signed(OURS, given, *parts)
    assert not is_signed(OTHER, given, *parts)
    assert not is_signed(OURS, given, b"PUT", b"/a", b"2")
    assert not is_signed(OURS, given, b"PUT", b"/", b"a1")
    assert not is_signed(OURS, "", *parts)
    assert not is_signed(OURS, "\udcff\u00e9", *parts)
    assert is_signed("", "anything", *parts)


def test_a_secret_that_can_be_guessed_is_refused_and_not_shown():
    with pytest.raises(ClusterConfigError) as error:
        secret_of({SECRET_VARIABLE: "hunter2"})
    assert "hunter2" not in str(error.value)
    assert "openssl rand -hex 16" in str(error.value)


def test_a_store_answers_those_who_have_the_secret():
    with serving(StoreServer(("127.0.0.1", 0), OURS)) as at:
        assert send_request(at, "PUT", "/a", b"1", OURS) == (200, b"")
        for secret in ("", OTHER):
            assert send_request(at, "GET", "/a", secret=secret) == (403, b"")
            assert send_request(at, "PUT", "/a", b"2", secret) == (403, b"")
            assert send_request(at, "DELETE", "/a", secret=secret) == (403, b"")
        assert send_request(at, "GET", "/a", secret=OURS) == (200, b"1")


@pytest.mark.parametrize("length", ["-1", "x", "99999999999", "1_0"])
def test_a_length_that_is_none_is_refused_at_once(length):
    with serving(StoreServer(("127.0.0.1", 0))) as at:
        with socket.create_connection((at.host, at.port), 5) as stranger:
            stranger.sendall(f"PUT /a HTTP/1.0\r\nContent-Length: {length}\r\n\r\n".encode())
            assert stranger.recv(1 << 10).split()[1] == b"413"
        assert send_request(at, "PUT", "/a", b"1") == (200, b"")


def test_what_is_no_http_disturbs_nobody(capsys):
    with serving(StoreServer(("127.0.0.1", 0))) as at:
        for data in (b"\xff\x00\r\n\r\n", b"PUT /a HTTP/1.0\r\nContent-Length: 9\r\n\r\nx", b""):
            with socket.create_connection((at.host, at.port), 5) as stranger:
                stranger.sendall(data)
        assert send_request(at, "PUT", "/a", b"1") == (200, b"")
    assert capsys.readouterr() == ("", "")


def sidecar(secret):
    first, _, at = free_ports(3)
    cluster = {"worker": [f"127.0.0.1:{first}", "127.0.0.1:1"]}
    environ = {
        "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}}),
        "KERAS_STRATEGIES_RENDEZVOUS": f"127.0.0.1:{at}",
        "KERAS_STRATEGIES_START_TIMEOUT": "1",
        SECRET_VARIABLE: secret,
    }
    return environ, Sidecar.beside(environ, lambda text: None)


def test_horovod_gets_through_the_relay_and_strangers_do_not():
    environ, own = sidecar(OURS)
    own.start(os.getpid())
    try:
        store = Address.parse(environ["KERAS_STRATEGIES_RENDEZVOUS"])
        relay = Address.parse(own.environ[SIDECAR_VARIABLE])
        assert send_request(relay, "PUT", "/global/0", b"here") == (200, b"")  # as Horovod asks
        assert send_request(relay, "GET", "/global/0") == (200, b"here")
        assert send_request(store, "GET", "/global/0") == (403, b"")
        assert send_request(relay, "PUT", f"/tf-config/{CREATED}")[0] == 403
        report(CREATED, {**own.environ, SECRET_VARIABLE: OURS})
        assert own.is_unsynchronized
        report(ENTERED, {**own.environ, SECRET_VARIABLE: OTHER})
        assert own.is_unsynchronized
        report(ENTERED, {**own.environ, SECRET_VARIABLE: OURS})
        assert not own.is_unsynchronized
    finally:
        own.close()


def test_a_meeting_is_of_those_who_have_the_secret(monkeypatch):
    monkeypatch.setenv(SECRET_VARIABLE, OURS)
    (port,) = free_ports(1)
    url, notes, results = f"tcp://127.0.0.1:{port}", [], {}

    def come(rank):
        results[rank] = rendezvous(url, Participant(Roles(2), rank), 20.0, notes.append)

    leader = threading.Thread(target=come, args=[0])
    leader.start()
    report = {"rank": 1, "tasks": ["worker 0", "worker 1"], "host": "evil", "port": 1, "token": "x"}
    for given in ("", signature(OTHER, json.dumps(report).encode())):
        connection = _connected(port)
        with connection:
            connection.sendall(f"{given} {json.dumps(report)}\n".encode())
            assert connection.recv(1 << 10) == b""  # turned away, and told nothing
    listener = _connected(port)
    come(1)
    leader.join(20)
    with listener:
        assert listener.recv(1 << 10) == b""  # who said nothing hears nothing
    assert results[0].cluster == results[1].cluster
    assert "evil" not in repr(results[0].cluster)
    assert notes == [f"rejected a connection without this job's {SECRET_VARIABLE}"] * 2


def test_a_meeting_of_others_is_not_joined(monkeypatch):
    monkeypatch.setenv(SECRET_VARIABLE, OURS)
    with socket.create_server(("127.0.0.1", 0)) as impostor:

        def answer():
            connection, _ = impostor.accept()
            with connection:
                connection.recv(1 << 10)
                connection.sendall(b' {"cluster": {"worker": ["evil:1", "evil:2"]}}\n')

        threading.Thread(target=answer, daemon=True).start()
        url = f"tcp://127.0.0.1:{impostor.getsockname()[1]}"
        with pytest.raises(
            ClusterConfigError, match="answers without the signature of this job's KERAS_"
        ):
            rendezvous(url, Participant(Roles(2), 1), 0.5, lambda text: None)


def test_each_start_has_a_secret_of_its_own_that_is_printed_nowhere():
    job = JobSpec(Roles(2), ["true"])
    starts = [[command.environ[SECRET_VARIABLE] for command in job.commands({})] for _ in "ab"]
    assert [len(set(start)) for start in starts] == [1, 1]
    assert starts[0] != starts[1]
    for command in job.commands({}):
        assert command.environ[SECRET_VARIABLE] not in " ".join(command.argv) + shell_line(command)
    given = job.commands({SECRET_VARIABLE: OURS})
    assert {command.environ[SECRET_VARIABLE] for command in given} == {OURS}
    assert SECRET_VARIABLE not in job.commands({}, is_dry=True)[0].environ
    far = JobSpec(Roles(2), ["true"], hosts=[Host("a"), Host("b")])
    for command in far.commands({SECRET_VARIABLE: OURS}, is_dry=True):
        assert OURS not in f"{shell_line(command)} {command.via}"


def test_a_secret_is_no_argument(capsys):
    assert main(["run", "--env", f"{SECRET_VARIABLE}={OURS}", "true"]) == 2
    assert OURS not in capsys.readouterr().err
    arguments = ["--name", "a", "--image", "b", "--env", f"{SECRET_VARIABLE}={OURS}", "x"]
    assert main(["render", "kubernetes", *arguments]) == 2


def test_the_tasks_of_a_job_share_it_and_no_log_has_it(job):
    script = job.script(
        "import hashlib, os, pathlib\n"
        "secret = os.environ['KERAS_STRATEGIES_SECRET']\n"
        "print(hashlib.sha256(secret.encode()).hexdigest())\n"
        "arguments = [p.read_bytes() for p in pathlib.Path('/proc').glob('[0-9]*/cmdline')]\n"
        "print(any(secret.encode() in each for each in arguments))\n"
    )
    code, output = job.run("--workers", 2, "--log-dir", "logs", "--verbose", script)
    assert code == 0, output
    logs = [path.read_text().split() for path in sorted((job.directory / "logs").iterdir())]
    assert logs[0] == logs[1]
    assert len(logs[0][0]) == 64
    assert logs[0][1] == "False"


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_logs_are_made_with_the_users_umask(job, umask):
    before = os.umask(umask)
    try:
        code, _ = job.run("--log-dir", "logs", job.script("print(1)"))
    finally:
        os.umask(before)
    assert code == 0
    mode = (job.directory / "logs/worker-0.log").stat().st_mode
    assert mode & 0o777 == 0o666 & ~umask


def _connected(port):
    end = time.monotonic() + 10
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 5)
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
