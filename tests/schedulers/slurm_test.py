"""Slurm itself: a controller and two nodes on this machine, for the time of the tests."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.elastic_training import ElasticTraining
from tf_config.builder import free_ports
from tf_config.cli import main
from tf_config.environments.node_list import parse_node_list

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLE = ROOT / "examples" / "digits.py"
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol")
HOST = socket.gethostname().split(".")[0]
NODES = ("n9", "n10")  # no host of that name is known, and as strings they sort the other way

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool.%n
SlurmdPidFile={directory}/slurmd.%n.pid
SlurmctldPidFile={directory}/slurmctld.pid
SlurmctldPort={ports[0]}
ReturnToService=2
MpiDefault=none
NodeName={nodes[0]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2
NodeName={nodes[1]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2
PartitionName=test Nodes={nodes[0]},{nodes[1]} Default=YES State=UP OverSubscribe=FORCE:4
"""


def missing():
    """Returns why Slurm cannot run here, None if it can."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"not installed: {', '.join(absent)} (Debian's packages slurm-wlm and munge)"
    return None if os.getuid() == 0 else "Slurm's daemons run as root"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """The environment in which Slurm's commands find the cluster."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("slurm")
    for name in ("state", *(f"spool.{node}" for node in NODES)):
        (directory / name).mkdir()
    key = directory / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    configuration = directory / "slurm.conf"
    configuration.write_text(
        CONFIGURATION.format(host=HOST, directory=directory, ports=free_ports(3), nodes=NODES)
    )
    environ = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    environ |= {
        "SLURM_CONF": str(configuration),
        "PYTHONPATH": str(ROOT),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }
    munge = ["munged", "--foreground", "--force", f"--key-file={key}"]
    munge += [
        f"--{option}={directory}/munge.{option.removesuffix('-file')}"
        for option in ("socket", "pid-file", "log-file", "seed-file")
    ]
    daemons = [munge, ["slurmctld", "-D", "-i"], *(["slurmd", "-D", "-N", node] for node in NODES)]
    log = (directory / "daemons.log").open("wb")
    running = []
    try:
        for daemon in daemons:
            running.append(subprocess.Popen(daemon, env=environ, stdout=log, stderr=log))
            time.sleep(0.5)
        deadline = time.monotonic() + 30
        while run(environ, "sinfo", "-h", "-t", "idle", "-o", "%D").stdout.strip() != "2":
            if time.monotonic() > deadline:
                pytest.fail(f"Slurm did not start:\n{(directory / 'daemons.log').read_text()}")
            time.sleep(0.2)
        yield environ
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait(20)
        log.close()


def run(environ, *command):
    """Runs one of Slurm's commands to its end."""
    options = {"capture_output": True, "text": True, "errors": "replace", "timeout": 200}
    return subprocess.run(command, env=environ, **options)


def test_srun_trains_one_model_on_all_tasks(slurm, forked_python):
    step = ["srun", "-n", "3", "-N", "2", "tf-config", "exec", "--start-timeout", "60", "--"]
    result = run(slurm, *step, forked_python, str(EXAMPLE), "--epochs", "1")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "weights: equal to the bit on all 3 workers" in result.stdout
    assert not {"\b", "\x1b"} & set(result.stdout)
    assert result.stdout.count("/step") == 1  # the first worker's line about the epoch


@pytest.mark.slow
def test_a_step_joins_a_job_and_scancel_lets_it_leave(slurm, forked):
    forked.environ |= {name: slurm[name] for name in ("SLURM_CONF", "PATH")}
    epochs = 6
    training = ElasticTraining(
        forked, "half_async", epochs, "rows", stops=("stop-0-1-2", "stop-1-1-3"), servers=2
    )
    training.touch("stop-2-3-3", "stop-0-3-2", "stop-1-3-4")
    for rank, step in ((0, 2), (1, 3)):
        training.wait_for(rank, 1, step)
    joined = training.join(["srun", "-n", "1", "--job-name", "joins"])
    training.wait_for(2, 1, 0)
    training.touch("go-1-2", "go-1-3")
    for rank, step in ((0, 2), (1, 4), (2, 3)):
        training.wait_for(rank, 3, step)
    # SIGTERM to the processes of the step; `scancel` alone also ends srun, which kills them soon.
    assert run(slurm, "scancel", "--signal=TERM", "--name", "joins").returncode == 0
    code, text = forked.finish(joined, 60)
    assert "Worker 2 leaves in epoch 3, after 3 of" in text, (code, text)
    training.touch("go-3-2", "go-3-4")
    counts, output = training.finish()
    assert "worker 2, which had joined the job, has left" in output
    assert sum(counts) == epochs * len(counts) - training.lost(text)
    forked.assert_nothing_left()


# Before the nodes' names, which no name service knows here, are replaced by their addresses.
PLACE = (
    "import os; from tf_config.environments import resolve; config = resolve(os.environ).config; "
    "print(os.environ['SLURMD_NODENAME'], config.task, config.address)"
)


@pytest.mark.parametrize("distribution", ["block", "cyclic"])
def test_each_task_knows_its_place_however_they_are_placed(slurm, distribution):
    step = ["srun", "--label", "-n", "4", "-N", "2", f"--distribution={distribution}"]
    result = run(slurm, *step, sys.executable, "-c", PLACE)
    assert result.returncode == 0, result.stderr
    lines = sorted(line.split() for line in result.stdout.splitlines())
    assert [line[0] for line in lines] == ["0:", "1:", "2:", "3:"]
    for rank, (_, node, job, index, address) in enumerate(lines):
        assert (job, index) == ("worker", str(rank))
        assert address.startswith(f"{node}:")


def test_a_batch_script_is_shown_its_job(slurm, tmp_path):
    output = tmp_path / "out"
    batch = ["sbatch", "--wait", "-n", "3", "-N", "2", f"--output={output}"]
    result = run(slurm, *batch, "--wrap", "tf-config show")
    assert result.returncode == 0, result.stderr + output.read_text()
    text = output.read_text()
    assert "worker 2" in text
    assert "read from: slurm" in text
    assert "SLURM_JOB_NODELIST=" in text


def submit(environ, directory, capsys, *arguments):
    """Renders a script, runs it to its end, and returns the exit code and its log."""
    script = directory / "job.sbatch"
    assert main(["render", "slurm", "-o", str(script), *arguments]) == 0, capsys.readouterr().err
    result = run(environ, "sbatch", "--wait", f"--chdir={directory}", str(script))
    logs = list(directory.glob("*.log"))
    assert len(logs) == 1, result.stdout + result.stderr
    # A bar may be cut inside a character.
    return result.returncode, logs[0].read_text(errors="replace")


@pytest.mark.slow
def test_a_rendered_script_trains_to_the_end(slurm, tmp_path, capsys):
    job = ["--workers", "3", "--name", "digits", "--nodes", "2", "--time", "10:00"]
    job += ["--partition", "test", "--cpus-per-worker", "1", "--start-timeout", "60"]
    code, log = submit(slurm, tmp_path, capsys, *job, "--", str(EXAMPLE), "--epochs", "2")
    assert code == 0, log
    assert re.search(r"(?m)^0: weights: equal to the bit on all 3 workers", log)  # by --label


@pytest.mark.slow
def test_the_batch_script_of_the_examples_trains(slurm, tmp_path):
    """In a directory that looks like a clone with its environment."""
    (tmp_path / "examples").symlink_to(EXAMPLE.parent)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").touch()  # the tests' environment is active
    script = EXAMPLE.parent / "slurm" / "digits.sbatch"
    result = run(slurm, "sbatch", "--wait", f"--chdir={tmp_path}", str(script))
    (log,) = tmp_path.glob("digits-*.log")
    text = log.read_text(errors="replace")
    assert result.returncode == 0, text
    assert "weights: equal to the bit on all 2 workers" in text


def test_a_rendered_script_gives_roles_and_starts_again_on_other_ports(slurm, tmp_path, capsys):
    # Fails at the first start, once all four have left their TF_CONFIG.
    code = """
import os, pathlib, sys, time
restart = int(os.environ["KERAS_STRATEGIES_RESTARTS"])
path = pathlib.Path(f"{restart}.{os.environ['SLURM_PROCID']}.json")
path.with_suffix(".new").write_text(os.environ["TF_CONFIG"])
path.with_suffix(".new").rename(path)
while len(list(pathlib.Path().glob(f"{restart}.*.json"))) < 3:
    time.sleep(0.05)
sys.exit(5 if restart == 0 else 0)
"""
    job = ["--workers", "1", "--chief", "--evaluator", "--max-restarts", "3"]
    ended, log = submit(slurm, tmp_path, capsys, *job, "--", sys.executable, "-c", code)
    assert ended == 0, log
    starts = []
    for restart in range(2):
        configs = [
            json.loads((tmp_path / f"{restart}.{rank}.json").read_text()) for rank in range(3)
        ]
        assert [config["task"]["type"] for config in configs] == ["chief", "worker", "evaluator"]
        assert all(config["cluster"] == configs[0]["cluster"] for config in configs)
        assert {name: len(tasks) for name, tasks in configs[0]["cluster"].items()} == {
            "chief": 1,
            "worker": 1,
        }
        starts.append({address for tasks in configs[0]["cluster"].values() for address in tasks})
    assert not starts[0] & starts[1]
    # srun's exit code is the largest: that of a task which it ended, if one was slower.
    assert re.search("exit code (5|143) at start 0; at most 3 restarts", log), log
    assert not list(tmp_path.glob("2.*"))


def test_srun_takes_a_colon_that_stands_alone_for_its_own(slurm):
    """Why such an argument is refused when a script is rendered."""
    result = run(slurm, "srun", "-n", "1", "echo", ":", "--no-such-option")
    assert result.returncode != 0
    assert "no-such-option" in result.stderr
    result = run(slurm, "srun", "-n", "1", "echo", "a:", "--no-such-option")
    assert result.stdout == "a: --no-such-option\n"


@pytest.mark.parametrize(
    "text",
    [
        "n[9-10]",
        "rack[1-2]node[01-03,7]",
        "a,b[3,5-6],c[09-11]x[1-2]",
        "n[8-011]",
        "a,,b",
        "n[1,1]",
    ],
)
def test_node_lists_are_read_as_scontrol_reads_them(slurm, text):
    assert parse_node_list(text) == run(slurm, "scontrol", "show", "hostnames", text).stdout.split()
