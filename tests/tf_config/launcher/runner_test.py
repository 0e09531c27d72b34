"""The launcher with small programs that need no TensorFlow."""

import contextlib
import os
import re
import shlex
import signal
import sys
import time
from pathlib import Path

import pytest

WHO = "import json, os; me = json.loads(os.environ['TF_CONFIG'])['task']['index']\n"
SLEEP = "import time; open(f'ready-{me}', 'w').close(); time.sleep(60)\n"
CHILD = (
    "import subprocess, sys\n"
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
)


def start_sleeping(job, text=WHO + SLEEP, *options, workers=2):
    """Starts a job whose tasks sleep, and returns when all of them do."""
    process = job.start("--workers", workers, *options, job.script(text))
    ready = [job.directory / f"ready-{index}" for index in range(workers)]
    job.wait_for(lambda: all(path.exists() for path in ready), 10)
    return process


def test_each_task_gets_its_configuration_the_arguments_and_the_environment(job):
    script = job.script(
        "import json, os, sys\n"
        "config = json.loads(os.environ['TF_CONFIG'])\n"
        "print(config['task'], len(config['cluster']['worker']), sys.argv[1:],"
        " os.environ['COLOUR'])\n"
    )
    job.environ["COLOUR"] = "blue"
    code, output = job.run("--workers", 2, script, "--epochs", "3", "a b")
    assert code == 0
    for index in (0, 1):
        expected = f"{{'type': 'worker', 'index': {index}}} 2 ['--epochs', '3', 'a b'] blue"
        assert f"[worker {index}] {expected}\n" in output


def test_a_chief_comes_first(job):
    script = job.script("import os; print(os.environ['TF_CONFIG'])")
    code, output = job.run("--workers", 1, "--chief", "--log-dir", "logs", script)
    assert code == 0
    assert sorted(path.name for path in (job.directory / "logs").iterdir()) == [
        "chief-0.log",
        "worker-0.log",
    ]
    assert '"task": {"type": "chief", "index": 0}' in output


def test_each_task_has_its_whole_output_in_its_log(job):
    script = job.script(
        WHO + "import sys\nprint('out', me)\nprint('1/2', end='\\r'); print('2/2')\n"
        "print('err', me, file=sys.stderr)\nprint('\\x1b[1mno line break', end='')\n"
    )
    code, output = job.run("--workers", 2, "--log-dir", "logs/here", script)
    assert code == 0
    for index in (0, 1):
        text = (job.directory / f"logs/here/worker-{index}.log").read_text()
        assert text == f"out {index}\n2/2\nerr {index}\nno line break\n"
    assert output.count("2/2") == 1
    assert output.count("no line break\n") == 2


def test_a_program_other_than_python_is_found_on_the_path(job):
    code, output = job.run("--workers", 2, "sh", "-c", "echo hello; exit 4")
    assert code == 4
    assert "hello" in output


def test_the_first_failure_is_named_and_ends_the_others(job):
    script = job.script(WHO + "import sys\nif me == 1: print('goodbye'); sys.exit(7)\n" + SLEEP)
    start = time.monotonic()
    code, output = job.run("--workers", 3, "--log-dir", "logs", script)
    assert time.monotonic() - start < 30
    assert code == 7
    assert "tf-config: worker 1 failed with exit code 7\n" in output
    assert output.endswith(
        "tf-config: worker 1 failed first, with exit code 7; its last lines, all of them in "
        "logs/worker-1.log\ntf-config: | goodbye\n"
    )
    assert "tf-config: ending worker 0, worker 2 (SIGTERM)" in output
    job.assert_nothing_left()


def test_who_failed_first_is_known_where_the_others_follow_at_once(job):
    script = job.script(
        WHO + "import glob, sys, time\n"
        "if me == 2: open(f'pid-{os.getpid()}', 'w').close(); sys.exit(3)\n"
        "while not (pid := glob.glob('pid-*')): time.sleep(0.001)\n"
        "stat = f'/proc/{pid[0][4:]}/stat'\n"
        "while os.path.exists(stat) and ') Z' not in open(stat).read(): time.sleep(0.001)\n"
        "time.sleep(0.05); sys.exit(1)\n"
    )
    code, output = job.run("--workers", 3, script)
    assert code == 3, output
    assert "worker 2 failed with exit code 3" in output


def test_a_task_that_ignores_sigterm_is_killed_after_five_seconds(job):
    script = job.script(
        WHO + "import signal, sys, time\n"
        "if me == 1:\n"
        "    while not os.path.exists('ready-0'): time.sleep(0.01)\n"
        "    sys.exit(9)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP
    )
    start = time.monotonic()
    code, _ = job.run("--workers", 2, script)
    assert code == 9
    assert 5 <= time.monotonic() - start < 9
    job.assert_nothing_left()


def test_a_task_that_a_signal_ended_has_the_shells_exit_code(job):
    script = job.script(WHO + "import signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    code, output = job.run("--workers", 1, script)
    assert code == 128 + signal.SIGSEGV
    assert "worker 0 failed with signal 11 (SIGSEGV)" in output


def test_of_a_killed_task_its_memory_and_its_last_line_are_said(job):
    script = job.script(
        "import os, signal, time\nheld = b'x' * (300 << 20)\nprint('3/9', end='\\r', flush=True)\n"
        "time.sleep(2.5)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    code, output = job.run("--workers", 2, script)
    assert code == 128 + signal.SIGKILL
    assert re.search(r"with signal 9 \(SIGKILL\); it used 0\.[34] GiB of memory; ", output)
    assert output.endswith("tf-config: | 3/9\n")


LOST = (
    WHO + "import sys\ncount = len(json.loads(os.environ['TF_CONFIG'])['cluster']['worker'])\n"
    "if me == 2: sys.exit(5)\nif count == 3:\n    " + SLEEP + "print('goes on with', count)\n"
)


@pytest.mark.parametrize(
    ("least", "restarts", "code"), [(2, 2, 0), (1, 3, 0), (3, 3, 5), (None, 3, 5), (2, 1, 5)]
)
def test_a_worker_that_fails_again_and_again_is_left_out(job, least, restarts, code):
    least = [] if least is None else ["--min-workers", least]
    script = job.script(LOST)
    found, output = job.run("--workers", 3, "--max-restarts", restarts, *least, script)
    assert found == code, output
    said = "worker 2 failed 2 times in a row; the job continues with 2 of its workers, renumbered"
    assert (said in output) == (code == 0)
    if code == 0:
        assert "[worker 0] goes on with 2" in output and "[worker 1] goes on with 2" in output
        assert f"restart 2 of {restarts}" in output
    job.assert_nothing_left()


def test_of_a_killed_task_its_last_step_is_said(job):
    script = job.script(
        "import os, signal\nfrom tf_config.launcher.progress_file import write_progress\n"
        "path = os.environ['KERAS_STRATEGIES_PROGRESS']\n"
        "write_progress(path, 'behind step 123456, in train.py')\n"
        "write_progress(path, 'behind step 7, in train.py')\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    code, output = job.run("--workers", 1, script)
    assert code == 128 + signal.SIGKILL
    assert "; when last seen it was behind step 7, in train.py; it printed nothing" in output


LIMITED = "import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("held = b'x' * (2 << 30)\n", "(MemoryError)"),
        ("import numpy\nnumpy.ones(1 << 28)\n", "Unable to allocate 2.00 GiB"),
        (
            "import os, sys\nprint('terminate called: std::bad_alloc')\nos.abort()\n",
            "std::bad_alloc",
        ),
        ("import sys\nsys.exit('\\x1b[1;35mMemoryError\\x1b[0m')\n", "(MemoryError)"),
    ],
    ids=["Python", "NumPy", "C++", "colors"],
)
def test_a_task_without_memory_ends_the_job_and_it_is_said(job, text, said):
    others = (
        WHO + "if me == 1:\n" + "".join(f"    {line}\n" for line in (LIMITED + text).splitlines())
    )
    code, output = job.run("--workers", 2, job.script(others + SLEEP))
    assert code != 0
    last = output.partition("worker 1 failed first, with ")[2].splitlines()[0]
    assert "; it ran out of memory (" in last and said in last, output
    job.assert_nothing_left()


def memory_group():
    """Returns a new control group of memory, and the file of its limit."""
    for parent, limit in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
        path = Path("/sys/fs/cgroup", parent, f"ks-{os.getpid()}")
        with contextlib.suppress(OSError):
            path.mkdir()
            if (path / limit).exists():
                return path, path / limit
            path.rmdir()
    pytest.skip("control groups of memory are made by root, where the kernel has them")


def test_the_kernels_word_of_a_task_beyond_its_control_group_is_said(job):
    group, limit = memory_group()
    try:
        limit.write_text(str(300 << 20))
        script = job.script(WHO + "held = b'x' * (me * (900 << 20))\n" + SLEEP)
        inside = f'echo $$ > {group}/cgroup.procs; exec "$@"'
        run = [job.python, "-m", "tf_config", "run", "--workers", "2", str(script)]
        process = job.popen(["sh", "-c", inside, "sh", *run])
        code, output = job.finish(process, 60)
        assert code == 128 + signal.SIGKILL, output
        assert "worker 1 failed first, with signal 9 (SIGKILL)" in output
        assert "; killed by the kernel's OOM killer" in output
    finally:
        job.close()
        for _ in range(50):
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_passed_on(job, number):
    text = (
        WHO + "import signal, sys, time\n"
        "def end(number, frame): print('got', number, flush=True); sys.exit(0)\n"
        f"signal.signal({number:d}, end)\n" + SLEEP
    )
    process = start_sleeping(job, text)
    process.send_signal(number)
    output, _ = process.communicate(timeout=4)
    assert process.returncode == 128 + number
    for index in (0, 1):
        assert f"[worker {index}] got {number:d}" in output
    job.assert_nothing_left()


def test_ctrl_c_leaves_the_workers_tracebacks_to_the_logs(job):
    bar = "print('\\r1/2', end='\\r2/3', flush=True)\n"  # a traceback begins in the line of a bar
    process = start_sleeping(job, WHO + bar + SLEEP, "--log-dir", "logs")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=8)
    assert process.returncode == 130
    assert output.splitlines()[-1] == "tf-config: ending worker 0, worker 1 (SIGINT)"
    assert "Traceback" not in output
    for index in (0, 1):
        log = (job.directory / f"logs/worker-{index}.log").read_text()
        assert log.endswith("KeyboardInterrupt\n")


def test_an_error_on_ctrl_c_is_shown(job):
    text = (
        WHO + "try:\n    " + SLEEP + "except KeyboardInterrupt:\n"
        "    print('saving', flush=True)\n    raise OSError('disk full')\n"
    )
    process = start_sleeping(job, text)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=8)
    for index in (0, 1):
        assert f"[worker {index}] saving\n" in output
        assert f"[worker {index}] OSError: disk full\n" in output


def test_ctrl_c_ends_what_does_not_listen(job):
    text = WHO + "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + SLEEP
    process = start_sleeping(job, text)
    process.send_signal(signal.SIGINT)
    assert process.wait(8) == 130
    job.assert_nothing_left()


def test_ctrl_c_twice_ends_it_at_once(job):
    text = (
        WHO + "import signal\n"
        "for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)\n"
        + SLEEP
    )
    process = start_sleeping(job, text)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    assert process.wait(3) == 130
    job.assert_nothing_left()


def test_nothing_outlives_a_launcher_that_is_killed(job):
    process = start_sleeping(job, WHO + CHILD + SLEEP)
    assert len(job.processes()) >= 6
    process.kill()
    process.wait()
    job.assert_nothing_left()


PARENT = (
    "import subprocess, sys, time\n"
    "subprocess.Popen([*sys.argv[2:]], start_new_session=False)\n"
    "time.sleep(60)\n"
)


def launch_under_a_parent(job, prefix=()):
    script = job.script(WHO + SLEEP)
    launcher = [*prefix, sys.executable, "-m", "tf_config", "run", "--workers", "2", str(script)]
    parent = job.popen([sys.executable, str(job.script(PARENT, "parent.py")), "--", *launcher])
    job.wait_for(lambda: (job.directory / "ready-1").exists(), 10)
    job.wait_for(lambda: (job.directory / "ready-0").exists(), 10)
    parent.kill()
    parent.wait()


def test_the_job_ends_with_the_launchers_parent(job):
    launch_under_a_parent(job)
    job.assert_nothing_left(within=4)


def test_a_job_under_nohup_outlives_the_launchers_parent(job):
    launch_under_a_parent(job, ["nohup"])
    time.sleep(1.5)
    assert len(job.processes()) >= 3


def test_what_a_finished_task_started_is_ended(job):
    script = job.script(WHO + CHILD)
    code, _ = job.run("--workers", 2, script, timeout=10)
    assert code == 0
    job.assert_nothing_left()


RESTARTS = (
    "import json, os, sys\n"
    "config = json.loads(os.environ['TF_CONFIG'])\n"
    "restart = int(os.environ['KERAS_STRATEGIES_RESTARTS'])\n"
    "print('attempt', restart, config['cluster']['worker'][0])\n"
)


# Worker 0 may still be starting when worker 1 fails; this holds the failure back until it spoke.
FAILS_TWICE = (
    "import pathlib, time\n"
    "spoke = pathlib.Path(f'spoke-{restart}')\n"
    "if config['task']['index'] == 0:\n"
    "    spoke.touch()\n"
    "elif restart < 2:\n"
    "    while not spoke.exists(): time.sleep(0.01)\n"
    "    sys.exit(3)\n"
)


def test_after_a_failure_all_tasks_start_again_on_new_ports(job):
    script = job.script(RESTARTS + FAILS_TWICE)
    code, output = job.run("--workers", 2, "--max-restarts", 5, "--log-dir", "logs", script)
    assert code == 0
    assert "tf-config: restart 2 of 5\n" in output
    assert "restart 3" not in output
    lines = (job.directory / "logs/worker-0.log").read_text().splitlines()
    assert [line.split()[:2] for line in lines] == [["attempt", str(n)] for n in range(3)]
    assert len({line.split()[2] for line in lines}) == 3


ALONE = " alone, the other tasks continue"
REJOINS = (
    WHO + "import pathlib, sys, time\nfrom tf_config.launcher.reports import report\n"
    "restart = int(os.environ['KERAS_STRATEGIES_RESTARTS'])\n"
    "print('start', me, os.getpid(), flush=True)\nreport('can-rejoin')\n"
    "pathlib.Path(f'ready-{me}').touch()\n"
    "def wait(name):\n"
    "    while not pathlib.Path(name).exists(): time.sleep(0.01)\n"
    "wait('ready-0'); wait('ready-1')\n"
)


@pytest.mark.parametrize("how", ["os.kill(os.getpid(), 9)", "sys.exit(3)"])
def test_a_worker_that_can_rejoin_is_restarted_alone(job, how):
    script = job.script(
        REJOINS + f"if me == 1 and restart < 2: {how}\n"
        "if me == 0: wait('done')\nelse: pathlib.Path('done').touch()\n"
    )
    code, output = job.run("--workers", 2, "--max-restarts", 5, script)
    assert code == 0, output
    assert f"restart 2 of 5: worker 1{ALONE}" in output
    assert sorted(re.findall(r"\] start (\d)", output)) == [*"0111"]
    job.assert_nothing_left()


SERVES = (
    "import os, pathlib, signal, time\n"
    "from tf_config.launcher.reports import is_reported, report\n"
    "rejoins = os.environ.get('KERAS_STRATEGIES_REJOINS')\n"
    "print('serves', rejoins, os.environ.get('KERAS_STRATEGIES_SERVER_SAVES'), is_reported())\n"
    "report('can-rejoin')\n"
    "if os.environ['KERAS_STRATEGIES_RESTARTS'] == '0': os.kill(os.getpid(), signal.SIGKILL)\n"
    "pathlib.Path('restarted').touch()\n"
    "time.sleep(60)\n"
)


@pytest.mark.parametrize(
    ("options", "serves", "is_alone"),
    [
        ([], ["None 30 True", "1 30 True"], True),
        (["--server-saves", "2.5"], ["None 2.5 True", "1 2.5 True"], True),
        (["--server-saves", "0"], ["None 0 False", "None 0 False"], False),
    ],
    ids=["default", "seconds", "never"],
)
def test_a_server_that_can_rejoin_is_restarted_alone(job, options, serves, is_alone):
    (job.directory / "fake/strategies").mkdir(parents=True)
    for name, text in (("__init__.py", ""), ("serve.py", SERVES)):
        (job.directory / "fake/strategies" / name).write_text(text)
    job.environ["PYTHONPATH"] = f"{job.directory / 'fake'}:{job.environ['PYTHONPATH']}"
    script = job.script(
        "import pathlib, time\nwhile not pathlib.Path('restarted').exists(): time.sleep(0.01)\n"
    )
    code, output = job.run("--ps", 1, "--max-restarts", 3, *options, script)
    assert code == 0, output
    assert (f"restart 1 of 3: ps 0{ALONE}" in output) == is_alone
    assert re.findall(r"\[ps 0\] serves (.*)", output) == serves
    job.assert_nothing_left()


def test_after_an_exchange_all_are_restarted(job):
    script = job.script(
        REJOINS + "report('exchanged')\nif me == 1 and restart < 1: sys.exit(3)\n"
        "if restart < 1: time.sleep(60)\n"
    )
    code, output = job.run("--workers", 2, "--max-restarts", 5, script)
    assert code == 0, output
    assert ALONE not in output
    assert sorted(re.findall(r"\] start (\d)", output)) == [*"0011"]


def test_the_last_worker_is_restarted_with_the_servers_unless_it_was_killed(job):
    # Servers end when the last worker has left, which one that was killed did not do.
    script = job.script(REJOINS.replace("wait('ready-1')", "") + "if restart < 1: sys.exit(3)\n")
    code, output = job.run("--workers", 1, "--max-restarts", 5, script)
    assert code == 0 and ALONE not in output, output


def test_a_worker_is_restarted_alone_until_no_restarts_are_left(job):
    script = job.script(REJOINS + "if me == 1: sys.exit(3)\ntime.sleep(60)\n")
    code, output = job.run("--workers", 2, "--max-restarts", 2, script)
    assert code == 3 and output.count(ALONE) == 2, output
    assert "worker 1 failed first, with exit code 3" in output
    job.assert_nothing_left()


@pytest.mark.parametrize("least", [1, 2])
def test_a_worker_that_fails_again_leaves_the_others_if_enough_remain(job, least):
    script = job.script(
        REJOINS + "if me == 1:\n"
        "    pathlib.Path(f'failed-{restart}').touch()\n    sys.exit(3)\n"
        "wait('failed-1'); time.sleep(1)\n"
    )
    options = "--max-restarts", 1, "--min-workers", least
    code, output = job.run("--workers", 2, *options, script)
    assert output.count(ALONE) == 1, output
    assert ("the other tasks continue without it" in output) == (least == 1)
    assert code == (0 if least == 1 else 3)
    job.assert_nothing_left()


def test_restarts_have_an_end(job):
    script = job.script(RESTARTS + "sys.exit(4)\n")
    code, output = job.run("--max-restarts", 2, script)
    assert code == 4
    assert output.count("failed first, with exit code 4") == 3


def test_a_signal_is_no_reason_to_start_again(job):
    process = job.start("--max-restarts", 3, job.script(WHO + SLEEP))
    job.wait_for(lambda: (job.directory / "ready-0").exists(), 10)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=4)
    assert process.returncode == 130
    assert "restart" not in output


THREADS = (
    "import os; print(*(os.environ[n] for n in ('TF_NUM_INTRAOP_THREADS', 'OMP_NUM_THREADS')))"
)


def test_tasks_share_the_cores_unless_told_otherwise(job):
    script = job.script(THREADS)
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"):
        job.environ.pop(name, None)
    share = max(len(os.sched_getaffinity(0)) // 2, 1)
    assert f"[worker 1] {share} {share}\n" in job.run("--workers", 2, script)[1]
    job.environ["OMP_NUM_THREADS"] = "7"
    assert f"[worker 1] {share} 7\n" in job.run("--workers", 2, script)[1]
    arguments = ["--workers", 2, "--threads-per-worker", 5, script]
    assert "[worker 1] 5 5\n" in job.run(*arguments)[1]


def test_a_program_that_does_not_exist_is_one_line_and_leaves_nothing(job):
    for program, rule, message in [
        ("none.py", "The script must exist.", "which is not a file here"),
        ("none", "The program must exist and be executable.", "No such file"),
    ]:
        code, output = job.run("--workers", 2, program)
        assert code == 2
        assert output.startswith(f"tf-config: error: {rule} Received: 'none")
        assert message in output
        assert output.count("\n") == 1
    job.assert_nothing_left()


def test_a_log_directory_that_cannot_be_made_is_one_line(job):
    script = job.script("")
    code, output = job.run("--log-dir", script / "logs", script)
    assert code == 2
    assert "--log-dir must name a directory that can be created" in output
    assert output.count("\n") == 1
    job.assert_nothing_left()


def test_a_reader_that_leaves_ends_the_job_without_a_traceback(job):
    script = job.script(WHO + CHILD + "import time\nwhile True: print('x'); time.sleep(0.01)\n")
    command = [sys.executable, "-m", "tf_config", "run", "--workers", "2", str(script)]
    process = job.popen(["bash", "-c", shlex.join(command) + " | head -1; exit ${PIPESTATUS[0]}"])
    output, _ = process.communicate(timeout=10)
    assert process.returncode == 128 + signal.SIGPIPE
    assert output.count("\n") == 1
    job.assert_nothing_left()


def test_a_reader_that_leaves_ends_the_tasks_in_order(job):
    stop = "signal.signal(signal.SIGTERM, lambda *_: (open(f'saved-{me}', 'w'), os._exit(0)))\n"
    ready = (
        "open(f'ready-{me}', 'w').close()\n"
        "while not os.path.exists(f'ready-{1 - me}'): time.sleep(0.01)\n"
    )
    loop = "while True: print('x', flush=True); time.sleep(0.01)\n"
    script = job.script(WHO + "import signal, time\n" + stop + ready + loop)
    command = [sys.executable, "-m", "tf_config", "run", "--workers", "2", str(script)]
    pipe = shlex.join(command) + " | grep -m 2 -F 'worker 1'; exit ${PIPESTATUS[0]}"
    process = job.popen(["bash", "-c", pipe])
    process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGPIPE
    assert (job.directory / "saved-0").exists()
    assert (job.directory / "saved-1").exists()
    job.assert_nothing_left()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux alone has a full disk at hand")
def test_a_full_disk_under_the_output_ends_no_job(job):
    script = job.script(WHO + "for i in range(3000): print('x' * 80)\nopen(f'done-{me}', 'w')\n")
    command = [sys.executable, "-m", "tf_config", "run", "--workers", "2", str(script)]
    process = job.popen(["bash", "-c", shlex.join(command) + " > /dev/full"])
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 0, output
    warning = "warning: the output ends here (No space left on device); the job continues"
    assert output.count(warning) == 1
    assert (job.directory / "done-0").exists()
    assert (job.directory / "done-1").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux alone has a full disk at hand")
def test_a_full_disk_under_a_log_is_said_and_ends_no_job(job):
    (job.directory / "logs").mkdir()
    (job.directory / "logs/worker-0.log").symlink_to("/dev/full")
    script = job.script(WHO + "print('first'); print('second')\n")
    code, output = job.run("--workers", 2, "--log-dir", "logs", script)
    assert code == 0
    warning = "warning: logs/worker-0.log ends here (No space left on device); the job continues"
    assert output.count(f"tf-config: {warning}\n") == 1
    assert "[worker 0] second" in output
    assert (job.directory / "logs/worker-1.log").read_text() == "first\nsecond\n"


def test_a_character_that_the_output_cannot_show_ends_no_job(job):
    job.environ["PYTHONIOENCODING"] = "ascii"
    script = job.script("import sys; sys.stdout.buffer.write('caf\u00e9\\n'.encode())")
    code, output = job.run(script)
    assert code == 0
    assert output.endswith("\n[worker 0] caf?\n")
