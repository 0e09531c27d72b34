"""What runs on another host, without the way there."""

import json
import signal
import subprocess
import sys
import time

import psutil
import pytest

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
