"""Workers that die, and Ctrl-C, in the middle of training."""

import re
import signal
import time

import pytest

from tf_config import TFConfig, local_cluster


@pytest.fixture
def endless(job, request):
    """The path of a script that trains until it is ended."""
    return request.path.parent.parent / "distributed" / "endless.py"


def start_training(job, endless):
    """Starts two workers under the launcher; returns when they train."""
    process = job.start("--workers", 2, "--log-dir", "logs", endless)
    job.wait_for(lambda: all((job.directory / f"training-{i}").exists() for i in range(2)), 60)
    return process


def task_process(job, index):
    """Returns the process that was told to be worker `index`."""
    for process in job.processes():
        config = TFConfig.from_env(process.environ())
        if config is not None and config.task.index == index:
            return process
    raise AssertionError(f"There is no worker {index}.")


@pytest.mark.slow  # the launcher's part: launcher/runner_test.py
@pytest.mark.parametrize("index", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_worker_that_is_killed_ends_the_job_and_is_named(job, endless, index):
    launcher = start_training(job, endless)
    time.sleep(2)  # it writes where it is twice a second
    killed = time.monotonic()
    task_process(job, index).kill()
    output, _ = launcher.communicate(timeout=20)
    assert time.monotonic() - killed < 10
    assert launcher.returncode == 128 + signal.SIGKILL
    assert f"tf-config: worker {index} failed with signal 9 (SIGKILL)\n" in output
    assert f"worker {index} failed first, with signal 9 (SIGKILL); " in output
    assert re.search(r"; when last seen it was after step \d+, in fit\(.*endless.py, line ", output)
    job.assert_nothing_left()


@pytest.mark.parametrize("index", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_without_a_launcher_a_dead_peer_ends_the_others(forked, endless, communication, index):
    cluster = local_cluster(workers=2)
    workers = []
    for task in cluster.training_tasks:
        forked.environ["TF_CONFIG"] = TFConfig(cluster, task).to_json()
        workers.append(forked.popen([forked.python, str(endless)]))
    forked.wait_for(
        lambda: all((forked.directory / f"training-{i}").exists() for i in range(2)), 60
    )
    workers[index].kill()
    # Horovod sometimes takes 30 seconds to notice.
    within = 100 if communication == "horovod" else 10
    output, _ = workers[1 - index].communicate(timeout=within)
    assert workers[1 - index].returncode != 0
    # The reason differs with the moment.
    reason = {
        "shared_memory": f"worker {index} has ended",
        "horovod": r"horovod\w*all",  # an operation; the first line names Horovod, too
        "tensorflow": "unavailable",
    }
    assert re.search(reason[communication], output.lower()), output
    forked.assert_nothing_left()


@pytest.mark.parametrize(
    "communication",
    [
        "shared_memory",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("horovod", "tensorflow")),
    ],
    indirect=True,
)
@pytest.mark.usefixtures("communication")
@pytest.mark.slow  # tests/tf_config/launcher/runner_test.py sends Ctrl-C to smaller programs
def test_ctrl_c_ends_the_training_on_all_workers(job, endless):
    launcher = start_training(job, endless)
    launcher.send_signal(signal.SIGINT)
    output, _ = launcher.communicate(timeout=10)
    assert launcher.returncode == 130
    assert "tf-config: ending worker 0, worker 1 (SIGINT)" in output
    job.assert_nothing_left()
