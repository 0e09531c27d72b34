"""Batch scripts: what they ask of Slurm, and what they run, with a stand-in for srun.

tests/schedulers/slurm_test.py submits them to Slurm itself.
"""

import os
import subprocess

import pytest

from tf_config import ClusterConfigError
from tf_config.render import SlurmJob
from tf_config.roles import Roles

# Leaves its words, one a line, and the number of the restart; fails until the last one.
SRUN = """#!/bin/bash
printf '%s\\n' "$@" >words
echo "${KERAS_STRATEGIES_RESTARTS-none}" >>restarts
if [ "${KERAS_STRATEGIES_RESTARTS-0}" != "$SUCCEEDS_AT" ]; then exit 7; fi
"""


@pytest.fixture
def batch(tmp_path):
    """Runs a job's script as Slurm would on the first node, but with the stand-in."""
    srun = tmp_path / "srun"
    srun.write_text(SRUN)
    srun.chmod(0o755)

    def run(job, succeeds_at=0):
        path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
        environ = {"PATH": path, "SUCCEEDS_AT": str(succeeds_at)}
        script = tmp_path / "script"
        script.write_text(job.script())
        code = subprocess.run(["bash", str(script)], cwd=tmp_path, env=environ).returncode
        words = (tmp_path / "words").read_text().splitlines()
        return code, words, (tmp_path / "restarts").read_text().split()

    return run


def directives(job):
    return [
        line.removeprefix("#SBATCH --")
        for line in job.script().splitlines()
        if line.startswith("#SBATCH --")
    ]


def test_the_least_that_can_be_asked():
    script = SlurmJob(Roles(2), ("train.py",)).script()
    assert script.startswith("#!/bin/bash\n#SBATCH ")
    assert directives(SlurmJob(Roles(2), ("train.py",))) == [
        "job-name=train",
        "output=%x-%j.log",
        "ntasks=2",
    ]


def test_all_that_can_be_asked():
    job = SlurmJob(
        Roles(3, 2, True, True), ("train.py",), name="digits-2", nodes=7, time="1-12:00:00",
        partition="gpu,long", cpus=4, gpus=1, memory="16G",
    )  # fmt: skip
    assert directives(job) == [
        "job-name=digits-2",
        "output=%x-%j.log",
        "ntasks=7",
        "nodes=7",
        "cpus-per-task=4",
        "gpus-per-task=1",
        "mem=16G",
        "time=1-12:00:00",
        "partition=gpu,long",
    ]


def test_the_directives_come_before_the_first_command():
    lines = SlurmJob(Roles(2), ("train.py",), max_restarts=1).script().splitlines()
    last = max(number for number, line in enumerate(lines) if line.startswith("#SBATCH"))
    assert all(line.startswith("#") for line in lines[: last + 1])


def test_the_program_gets_its_words_as_they_are(batch):
    words = ["--x", "a b", "$HOME", "it's", "*", "é", "#", "a:b"]
    job = SlurmJob(
        Roles(1, 2, True, True), ("train.py", *words), cpus=3, options=("--start-timeout", "600")
    )
    code, received, restarts = batch(job)
    assert code == 0
    assert received == [
        "--kill-on-bad-exit=1", "--label", "--cpus-per-task=3", "tf-config", "exec", "--from",
        "slurm", "--ps", "2", "--chief", "--evaluator", "--start-timeout", "600",
        "--", "train.py", *words,
    ]  # fmt: skip
    assert restarts == ["none"]


@pytest.mark.parametrize(
    ("max_restarts", "succeeds_at", "code", "restarts"),
    [
        (3, 0, 0, "0"),
        (3, 2, 0, "0 1 2"),
        (3, 3, 0, "0 1 2 3"),
        (3, 4, 7, "0 1 2 3"),
        (0, 1, 7, "none"),
    ],
)
def test_restarts_end_at_the_first_success(batch, max_restarts, succeeds_at, code, restarts):
    job = SlurmJob(Roles(2), ("train.py",), max_restarts=max_restarts)
    found, _, received = batch(job, succeeds_at)
    assert (found, received) == (code, restarts.split())


@pytest.mark.parametrize("time", ["90", "90:30", "1:00:00", "2-0", "2-12:30", "2-12:30:59"])
def test_slurms_ways_to_write_a_time(time):
    assert f"time={time}" in directives(SlurmJob(Roles(1), ("x",), time=time))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "a b"}, "A job's name must consist of letters"),
        ({"name": "a\n#SBATCH --array=1-9"}, "A job's name must consist of letters"),
        ({"name": ""}, "A job's name must consist of letters"),
        ({"name": "../x"}, "A job's name must consist of letters"),
        ({"nodes": 3}, "of nodes, each with a task, must be from 1 to 2. Received: 3"),
        ({"nodes": 0}, "must be from 1 to 2. Received: 0"),
        ({"time": "1h"}, "A time must be in Slurm's format. Received: '1h'"),
        ({"time": "1:00:00:00"}, "A time must be in Slurm's format"),
        ({"time": ""}, "A time must be in Slurm's format"),
        ({"partition": "a,,b"}, "Partitions must be names"),
        ({"partition": "a b"}, "Partitions must be names"),
        ({"memory": "0"}, "Memory must be a number, with an optional unit"),
        ({"memory": "4Gi"}, "Memory must be a number, with an optional unit"),
        ({"program": ()}, "A program must be given"),
        ({"program": ("",)}, "A program must be given"),
        ({"program": ("x", ":", "y")}, "cannot be ':'"),
        ({"program": ("x", "\udcff")}, "must be text in UTF-8"),
    ],
)
def test_wrong_input(changes, message):
    right = {"roles": Roles(2), "program": ("x",)}
    with pytest.raises(ClusterConfigError) as error:
        SlurmJob(**(right | changes))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_what_a_site_asks_for():
    job = SlurmJob(
        Roles(workers=4), ("train.py",), nodes=2, account="p_x", tasks_per_node=2,
        gres="gpu:a100:2", memory="64000", directives=("--exclusive", "-C rome"),
    )  # fmt: skip
    asked = [line for line in job.script().splitlines() if line.startswith("#SBATCH")]
    assert [line.removeprefix("#SBATCH ") for line in asked[2:]] == [
        *("--ntasks=4", "--nodes=2", "--ntasks-per-node=2", "--gres=gpu:a100:2"),
        *("--mem=64000", "--account=p_x", "--exclusive", "-C rome"),
    ]


def test_lines_of_the_users_own_come_first_and_may_read_what_is_not_set(batch, tmp_path):
    setup = ('module() { echo "$NOT_SET" "$@" >loaded; }', "module load TensorFlow")
    code, words, _ = batch(SlurmJob(Roles(workers=2), ("train.py",), setup=setup))
    assert (code, words[-1]) == (0, "train.py")
    assert (tmp_path / "loaded").read_text() == " load TensorFlow\n"


def test_a_line_that_fails_ends_the_job(batch, tmp_path):
    job = SlurmJob(Roles(), ("train.py",), setup=("false",))
    (tmp_path / "words").write_text("none")
    (tmp_path / "restarts").touch()
    assert batch(job)[:2] == (1, ["none"])


@pytest.mark.parametrize("option", ["--output=%j.out", "-o %j.out"])
def test_another_log_may_be_named(option):
    script = SlurmJob(Roles(workers=2), ("train.py",), directives=(option, "-e %j.err")).script()
    assert f"#SBATCH {option}\n#SBATCH -e %j.err\n" in script
    assert "%x-%j.log" not in script


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"account": "a b"}, "An account must consist of letters"),
        ({"gres": "gpu 1"}, "Generic resources of a node"),
        ({"tasks_per_node": 3}, "The number of tasks of a node must be from 1 to 2"),
        ({"nodes": 1, "tasks_per_node": 1}, "2 tasks, 1 nodes with 1 each"),
        ({"setup": ("a\nb",)}, "A shell command must be one line"),
        ({"setup": ("",)}, "A shell command must be one line"),
        (
            {"directives": ("exclusive",)},
            "An option of sbatch must begin with '-', and must be one line",
        ),
        ({"directives": ("--mem=3",)}, "of sbatch cannot be given twice. Received: '--mem=3'"),
        ({"directives": ("-n3",)}, "An option of sbatch cannot be given twice"),
        ({"directives": ("--ntasks 3",)}, "An option of sbatch cannot be given twice"),
    ],
)
def test_what_a_site_could_not_take_is_refused(changes, message):
    with pytest.raises(ClusterConfigError, match=message):
        SlurmJob(Roles(workers=2), ("train.py",), **changes)
