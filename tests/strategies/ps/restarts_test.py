"""A lost server is restarted in place, and the workers continue."""

import os
import random

import pytest

from tests.support.job import HANGING_SECONDS
from tests.support.restarted_tasks import PROGRAM, RestartedTasks, server_faults_in

SLOW = pytest.mark.slow
MODES = ["async", "half_async", "geo"]
KILLS = 2
SEED = os.environ.get("KERAS_STRATEGIES_TEST_SEED", "1")


@pytest.mark.parametrize(
    ("mode", "servers"),
    [
        ("half_async", 2),
        *(
            pytest.param(mode, servers, marks=SLOW)
            for mode in (*MODES, "geo-forgets")
            for servers in (1, 2)
            if (mode, servers) != ("half_async", 2)
        ),
    ],
)
def test_workers_continue_with_a_restarted_server(forked, mode, servers):
    chance = random.Random(f"{SEED} {mode} {servers}")
    training = RestartedTasks(forked, mode, servers, restarts=KILLS)
    training.wait_until_saved()
    for _ in range(KILLS):
        training.kill_server(chance)
    code, output = training.finish()
    assert code == 0, output
    fault = server_faults_in(output, servers, KILLS)
    assert not fault, (fault, output)
    assert training.starts() == [1, 1]
    assert not list(forked.directory.glob("keras-strategies-*")), "saves are removed"
    forked.assert_nothing_left()


@SLOW
@pytest.mark.parametrize("mode", ["half_async", "async", "geo"])
def test_a_model_of_keras_continues_with_a_restarted_server(forked, mode):
    program = PROGRAM.with_name("servers_restarted_model.py")
    training = RestartedTasks(forked, mode, 1, restarts=1, program=program)
    training.wait_until_saved()
    training.kill_server(random.Random(SEED))
    code, output = training.finish()
    assert code == 0 and output.count("] passed") == 2, output
    assert output.count(" serves again at ") == 1, output
    assert training.starts() == [1, 1]
    forked.assert_nothing_left()


@SLOW
def test_without_saves_the_loss_of_a_server_restarts_all(forked):
    script = forked.script(
        "import os, signal, time\n"
        "import psutil, strategies\n"
        "strategy = strategies.from_tf_config(mode='half_async')\n"
        "if os.environ['KERAS_STRATEGIES_RESTARTS'] == '0':\n"
        "    time.sleep(4)\n"
        "    os.kill(next(p.pid for p in psutil.process_iter()\n"
        "        if 'strategies.serve' in p.cmdline()\n"
        f"        and p.cwd() == {str(forked.directory)!r}), signal.SIGKILL)\n"
        "    time.sleep(100)\n"
    )
    code, output = forked.run(
        "--workers", 1, "--ps", 1, "--max-restarts", 1, "--server-saves", 0, script,
        timeout=HANGING_SECONDS,
    )  # fmt: skip
    assert code == 0 and "restart 1 of 1\n" in output, output
    assert "alone" not in output


@SLOW
def test_a_server_that_is_lost_at_a_barrier_restarts_all(forked):
    """Another worker may have passed the barrier, so that the call cannot be repeated."""
    forked.environ["TMPDIR"] = str(forked.directory)
    script = forked.script(
        "import glob, os, signal, time\n"
        "import psutil, strategies\n"
        "strategy = strategies.from_tf_config(mode='half_async')\n"
        "is_first = os.environ['KERAS_STRATEGIES_RESTARTS'] == '0'\n"
        "if strategies.worker_rank(strategy) == 1 and is_first:\n"
        "    while not glob.glob('keras-strategies-*/latest.json'): time.sleep(0.1)\n"
        "    time.sleep(5)\n"
        "    os.kill(next(p.pid for p in psutil.process_iter()\n"
        "        if 'strategies.serve' in p.cmdline()\n"
        f"        and p.cwd() == {str(forked.directory)!r}), signal.SIGKILL)\n"
        "    time.sleep(100)\n"
        "strategies.barrier(strategy)\n"
        "print('passed')\n"
    )
    code, output = forked.run("--workers", 2, "--ps", 1, "--max-restarts", 2, script)
    assert code == 0 and output.count("] passed") == 2, output
    assert "restart 1 of 2: ps 0 alone" in output and "restart 2 of 2\n" in output, output
    assert "is gone: " in output
    assert not list(forked.directory.glob("keras-strategies-*"))


def test_a_server_that_has_saved_nothing_is_not_restarted_alone(forked, tmp_path):
    from tf_config import Task, TFConfig, local_cluster

    cluster = local_cluster(workers=1, ps=1)
    forked.environ |= {
        "TF_CONFIG": TFConfig(cluster, Task("ps", 0)).to_json(),
        "KERAS_STRATEGIES_SERVER_SAVES": "1",
        "KERAS_STRATEGIES_REJOINS": "1",
        "TMPDIR": str(tmp_path),
    }
    process = forked.popen([forked.python, "-m", "strategies.serve"])
    code, output = forked.finish(process, HANGING_SECONDS)
    assert code == 1
    assert "must have saved its state. Received: no complete save in " in output, output
