"""What runs beside each task: Horovod's way to the others, and the warning of training apart."""

import json
import os
import subprocess
import sys
import threading
import time

import pytest

from tf_config import ClusterSpec, Task, TFConfig
from tf_config.address import Address
from tf_config.builder import free_ports
from tf_config.horovod import environment as horovod
from tf_config.launcher.reports import CREATED, ENTERED, report
from tf_config.launcher.settings import RENDEZVOUS_VARIABLE, SIDECAR_VARIABLE
from tf_config.launcher.sidecar import Sidecar
from tf_config.rendezvous import waiting

# What TensorFlow does to a process as it is seen from outside, without its seconds of import.
LIKE_TENSORFLOW = (
    "import json, mmap, os, socket, sys, time\n"
    "config = json.loads(os.environ['TF_CONFIG'])\n"
    "task = config['task']\n"
    "with open(f'libtensorflow_framework.so.{os.getpid()}', 'w+b') as file:\n"
    "    file.write(bytes(4096)); file.flush()\n"
    "    library = mmap.mmap(file.fileno(), 4096)\n"
    "print('trains', flush=True)\n"
)
LISTENS = (
    "host, _, port = config['cluster'][task['type']][task['index']].rpartition(':')\n"
    "server = socket.create_server((host, int(port)))\n"
)
# So long that it is seen.
STAYS = "time.sleep(2)\n"
WARNING = "ran TensorFlow but did not connect to the other tasks"


def test_tasks_that_train_and_join_nobody_are_named_and_the_exit_code_stays(job):
    code, output = job.run("--workers", 2, job.script(LIKE_TENSORFLOW + STAYS))
    assert code == 0
    assert f"\ntf-config: warning: worker 0, worker 1 {WARNING}: " in output
    assert output.count("warning") == 1


def test_one_that_does_not_join_is_named_alone(job):
    some = "if task['index'] == 0:\n    " + LISTENS.replace("\n", "\n    ") + "\n"
    code, output = job.run("--workers", 2, job.script(LIKE_TENSORFLOW + some + STAYS))
    assert code == 0
    assert f"tf-config: warning: worker 1 {WARNING}: " in output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--workers", 1], LIKE_TENSORFLOW + STAYS),
        (["--workers", 2], LIKE_TENSORFLOW + LISTENS + STAYS),
        (["--workers", 2], LIKE_TENSORFLOW + "time.sleep(1); sys.exit(3)\n"),
        (["--workers", 2], "import time; time.sleep(1); print('trains')\n"),
        (
            ["--workers", 1, "--chief", "--evaluator"],
            LIKE_TENSORFLOW + "if task['type'] != 'evaluator':\n    "
            + LISTENS.replace("\n", "\n    ") + "\n" + STAYS,
        ),
    ],
    ids=["alone", "stock strategy", "failed", "no TensorFlow", "evaluator"],
)  # fmt: skip
def test_there_is_no_false_alarm(arguments, text, job):
    code, output = job.run(*arguments, job.script(text))
    assert "trains" in output
    assert "warning" not in output
    assert code == (3 if "sys.exit(3)" in text else 0)


def test_exec_warns_as_well_and_leaves_no_process(job):
    script = job.script(LIKE_TENSORFLOW + STAYS + "sys.exit(5)\n")
    job.environ["TF_CONFIG"] = cluster(2)[1].to_json()
    process = job.popen([sys.executable, "-m", "tf_config", "exec", "--", str(script)])
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 5
    assert f"tf-config: warning: worker 1 {WARNING}: " in output
    job.assert_nothing_left()


def test_exec_of_what_is_no_training_says_nothing(job):
    job.environ["TF_CONFIG"] = cluster(2)[0].to_json()
    command = [sys.executable, "-m", "tf_config", "exec", "--", sys.executable, "-c", "print(1)"]
    output, _ = job.popen(command).communicate(timeout=60)
    assert output == "1\n"
    job.assert_nothing_left()


@pytest.mark.parametrize(
    ("words", "expected"),
    [([], None), ([CREATED], True), ([CREATED, ENTERED], False), ([ENTERED], None)],
)
def test_a_strategy_that_was_made_has_to_be_used(words, expected):
    with pair() as (first, _, _), subprocess.Popen(["sleep", "60"]) as process:
        first.start(process.pid)
        for word in words:
            report(word, first.environ)
        assert first.is_unsynchronized is expected
        process.kill()


def test_a_process_of_horovod_waits_for_the_rendezvous_and_for_the_others(monkeypatch):
    monkeypatch.setattr(waiting, "_NOTE_SECONDS", 0.3)
    with pair(lazy=True) as (make_first, second, notes):
        second.start(os.getpid())
        answers = []
        at = address_of(second)
        asking = [
            threading.Thread(target=lambda: answers.append(slow(at, "PUT", "/global/1", b"b"))),
            threading.Thread(target=lambda: answers.append(slow(at, "GET", "/global/rank_0"))),
        ]
        for thread in asking:
            thread.start()
        wait_for(lambda: any("for the rendezvous beside worker 0 at" in note for note in notes))
        first = make_first()
        first.start(os.getpid())
        wait_for(lambda: any("for worker 0 to start Horovod as well" in note for note in notes))
        assert slow(address_of(first), "PUT", "/global/rank_0", b"a") == (200, b"")
        for thread in asking:
            thread.join(10)
        assert sorted(answers) == [(200, b""), (200, b"a")]
        assert slow(address_of(first), "GET", "/global/1") == (200, b"b")
        assert (first.is_unsynchronized, second.is_unsynchronized) == (False, False)


def test_it_gives_up_after_the_start_timeout_and_says_so():
    with pair(timeout=1) as (first, second, notes):
        for each in (first, second):
            each.start(os.getpid())
        assert slow(address_of(second), "GET", "/global/rank_0")[0] == 404
        assert any("it gives up after 1 s" in note for note in notes)
        notes.clear()  # Horovod asks three times; it is answered at once, with no more words
        assert slow(address_of(second), "GET", "/global/rank_0")[0] == 404
        assert notes == []


def test_two_jobs_at_one_rendezvous_have_nothing_in_common():
    with pair() as (first, second, _), pair(timeout=1, at=rendezvous_of(first)) as (_, other, _):
        for each in (first, second, other):
            each.start(os.getpid())
        slow(address_of(second), "PUT", "/global/rank_0", b"x")
        assert slow(address_of(other), "GET", "/global/rank_0")[0] == 404


def test_horovods_variables_of_each_process():
    spec = ClusterSpec.from_dict({"chief": ["a:1"], "worker": ["b:1", "a:2", "b:2", "b:3"]})
    rows = [
        "RANK LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE HOSTNAME".split(),
        "0 0 2 0 2 a".split(),
        "1 0 3 1 2 b".split(),
        "2 1 2 0 2 a".split(),
        "3 1 3 1 2 b".split(),
        "4 2 3 0 1 b".split(),
    ]
    for task, row in zip(spec.training_tasks, rows[1:], strict=True):
        variables = horovod.place(spec, task)
        assert variables["HOROVOD_SIZE"] == "5"
        assert [variables[f"HOROVOD_{name}"] for name in rows[0]] == row


@pytest.mark.parametrize(
    ("jobs", "environ", "gloo"),
    [
        ({"worker": ["a:1", "b:1"]}, {}, True),
        ({"worker": ["a:1", "b:1"]}, {"PMIX_RANK": "0"}, False),
        # MPI has started the server too, which is none of Horovod's processes.
        ({"worker": ["a:1"], "ps": ["b:1"]}, {"PMIX_RANK": "0"}, True),
    ],
)
def test_horovod_chooses_by_itself_where_mpi_started_its_processes(jobs, environ, gloo):
    variables = horovod.defaults(ClusterSpec.from_dict(jobs), Task("worker", 0), environ)
    assert (variables.get("HOROVOD_CONTROLLER") == "gloo") is gloo


def test_what_the_user_says_of_horovod_wins_but_not_who_it_is():
    with pair(HOROVOD_GLOO_IFACE="eth9", HOROVOD_RANK="7", HOROVOD_SIZE="8") as (first, second, _):
        assert "HOROVOD_GLOO_IFACE" not in first.environ
        assert (second.environ["HOROVOD_RANK"], second.environ["HOROVOD_SIZE"]) == ("1", "2")


def test_a_rendezvous_that_is_taken_is_said():
    with pair() as (first, _, _), pair(at=rendezvous_of(first), lazy=True) as (make, _, notes):
        make().close()
        assert any("Horovod's rendezvous cannot be served at 127.0.0.1:" in note for note in notes)


class pair:
    """Two workers' sidecars; `lazy` gives a function that makes the first one."""

    def __init__(self, lazy=False, timeout=30, at=None, **environ):
        self._lazy, self.notes, self._made = lazy, [], []
        port = free_ports(1)[0]
        self._environ = {
            **environ,
            "KERAS_STRATEGIES_START_TIMEOUT": str(timeout),
            RENDEZVOUS_VARIABLE: f"127.0.0.1:{port}" if at is None else at,
        }
        self._configs = cluster(2)

    def _make(self, index):
        environ = {**self._environ, "TF_CONFIG": self._configs[index].to_json()}
        made = Sidecar.beside(environ, self.notes.append)
        self._made.append(made)
        made.rendezvous = self._environ[RENDEZVOUS_VARIABLE]
        return made

    def __enter__(self):
        first = (lambda: self._make(0)) if self._lazy else self._make(0)
        return first, self._make(1), self.notes

    def __exit__(self, *error):
        for made in self._made:
            made.close()


def cluster(workers):
    spec = ClusterSpec.from_dict({"worker": [f"127.0.0.1:{port}" for port in free_ports(workers)]})
    return [TFConfig(spec, task) for task in spec.training_tasks]


def rendezvous_of(made):
    return made.rendezvous


def address_of(made):
    return Address.parse(made.environ[SIDECAR_VARIABLE])


def slow(at, method, path, body=b""):
    """Asks and waits as Horovod does, without a limit of its own."""
    command = (
        "import http.client, json, sys\n"
        "connection = http.client.HTTPConnection(sys.argv[1])\n"
        "connection.request(*sys.argv[2:4], sys.argv[4].encode())\n"
        "answer = connection.getresponse()\n"
        "print(json.dumps([answer.status, answer.read().decode()]))\n"
    )
    words = [sys.executable, "-c", command, str(at), method, path, body.decode()]
    status, content = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    return status, content.encode()


def wait_for(found, within=20):
    deadline = time.monotonic() + within
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.02)
