"""What runs on another host, without the way there."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tf_config import Task
from tf_config.launcher.agent_messages import MessageReader
from tf_config.launcher.metrics import TaskMetrics
from tf_config.launcher.progress_file import Report, Sample
from tf_config.launcher.ssh import metrics_of

SPEAKS = "import os, time; print('up', os.environ['A'], flush=True)\n"


def agent(job, request):
    request = {"directory": str(job.directory), **request}
    process = job.popen([sys.executable, "-m", "tf_config.launcher.agent"], stdin=subprocess.PIPE)
    process.stdin.write(json.dumps(request) + "\n")
    process.stdin.flush()
    return process


def outcome(process):
    """Reads to the end. The input stays open: its end would end the program."""
    output = process.stdout.read()
    code = process.wait(20)
    return output, code


def program(code, **environ):
    environ = {"A": "1", **environ}
    argv = [sys.executable, "-c", SPEAKS + code]
    return {"argv": argv, "environ": environ, "size": [80, 24], "directory": "/"}


def test_it_says_what_the_host_has(job, tmp_path):
    (tmp_path / "here.py").touch()
    process = agent(job, {"ports": 3, "files": ["here.py", "gone.py"]})
    output, _ = outcome(process)
    assert output.startswith("\n")  # behind what a login script printed without an end of the line
    answer = json.loads(output)
    assert len(set(answer["ports"])) == 3
    assert answer["missing"] == ["gone.py"]
    assert answer["cores"] >= 1
    assert "lo" in answer["interfaces"]


@pytest.mark.parametrize(
    ("code", "expected"), [("os._exit(0)", 0), ("os._exit(7)", 7), ("os.kill(os.getpid(), 9)", 137)]
)
def test_it_ends_with_the_programs_code(job, code, expected):
    output, found = outcome(agent(job, program(code)))
    assert found == expected
    killed = "tf-config: signal 9 (SIGKILL); it used 0.0 GiB of memory; "
    assert output.startswith(f"up 1\n{killed}" if expected == 137 else "up 1\n")
    assert output.count("\n") == 1 + (expected == 137)


def test_it_passes_on_all_output_however_much(job):
    output, _ = outcome(agent(job, program("print('x' * 3_000_000, end='')")))
    assert output == "up 1\n" + "x" * 3_000_000


def test_a_number_is_a_signal(job):
    process = agent(job, program("time.sleep(60)"))
    assert process.stdout.readline() == "up 1\n"
    process.stdin.write(f"\n{signal.SIGTERM.value}\n")
    process.stdin.flush()
    assert outcome(process) == ("", 128 + signal.SIGTERM)
    job.assert_nothing_left()


def test_when_the_launcher_is_gone_so_is_all_that_the_program_started(job):
    child = "import subprocess; subprocess.Popen(['sleep', '60']); time.sleep(60)"
    process = agent(job, program(child))
    assert process.stdout.readline() == "up 1\n"
    process.stdin.close()
    process.wait(10)
    job.assert_nothing_left()


def test_a_program_that_does_not_listen_is_killed(job):
    stubborn = "import signal; signal.signal(15, signal.SIG_IGN); print('deaf'); time.sleep(60)"
    process = agent(job, program(stubborn))
    assert [process.stdout.readline() for _ in range(2)] == ["up 1\n", "deaf\n"]
    start = time.monotonic()
    process.stdin.close()
    process.wait(20)
    assert time.monotonic() - start > 4
    job.assert_nothing_left()


def test_a_program_does_not_outlive_an_agent_that_is_killed(job):
    """Schedulers kill the process group of the agent, which is not that of the program."""
    process = agent(job, program("print(os.getpid(), flush=True); time.sleep(60)"))
    assert process.stdout.readline() == "up 1\n"
    pid = int(process.stdout.readline())
    process.kill()
    job.wait_for(lambda: not psutil.pid_exists(pid), 10)
    job.assert_nothing_left()


def test_a_launcher_that_is_silent_for_long_is_gone(job):
    """A connection that broke without a word: nothing comes, and nothing says that it ended."""
    code = (
        "import tf_config.launcher.agent as a; a._SILENCE_SECONDS = 2.0; raise SystemExit(a.main())"
    )
    process = job.popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    process.stdin.write(json.dumps(program("time.sleep(60)")) + "\n")
    process.stdin.flush()
    process.wait(10)
    job.assert_nothing_left()


def test_a_program_runs_in_the_launchers_directory(job):
    request = program("print(os.getcwd())") | {"directory": str(job.directory)}
    assert outcome(agent(job, request)) == (f"up 1\n{job.directory}\n", 0)
    process = agent(job, {"ports": 1, "files": [], "directory": "/nosuch"})
    assert outcome(process) == ("/nosuch: No such file or directory\n", 1)


def test_a_program_that_is_not_there(job):
    process = agent(job, {"argv": ["nosuch"], "environ": {}, "size": [80, 24]})
    assert (
        process.communicate(timeout=20)[0]
        == "tf-config: error: nosuch: No such file or directory\n"
    )
    assert process.returncode == 127


def test_a_reader_that_leaves_ends_the_program(job):
    process = agent(job, program("\nwhile True: print('x' * 99)"))
    process.stdout.close()
    process.wait(20)
    job.assert_nothing_left()


def test_it_reports_the_programs_numbers_if_the_launcher_serves_them(job):
    """As messages among the output, which the launcher takes out again."""
    code = (
        "from tf_config.launcher.progress_file import Report, Sample, file_of, write_report\n"
        "write_report(file_of(), Report(9.0, [Sample('steps_total', 5)]))\n"
        "while not os.path.exists('read'): time.sleep(0.05)\n"
        "print('done')"
    )
    request = program(code, KERAS_STRATEGIES_METRICS="1") | {"directory": str(job.directory)}
    process = agent(job, request)
    reader, latest, text = MessageReader(), TaskMetrics(Task("worker", 1), 0, None), b""
    while latest.report is None:
        output, messages = reader.feed(os.read(process.stdout.fileno(), 1 << 12))
        text += output
        for message in messages:
            latest = metrics_of(latest.task, message, latest)
    assert latest.report == Report(9.0, [Sample("steps_total", 5)])
    assert latest.memory > 1 << 20
    (job.directory / "read").touch()
    rest, code = outcome(process)
    assert (text + reader.feed(rest.encode())[0], code) == (b"up 1\ndone\n", 0)


def test_a_message_of_another_version_changes_nothing():
    before = TaskMetrics(Task("worker", 1), 4096, None)
    for message in (b"", b"other", b"[1]", b'["much", null]', b"\xff"):
        assert metrics_of(before.task, message, before) is before
