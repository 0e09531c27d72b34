"""mpirun itself, Open MPI's and MPICH's, on this machine."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.job import HANGING_SECONDS

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLE = ROOT / "examples" / "digits.py"
MPIRUN = {
    "openmpi": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"],
    "pmi": ["mpirun.mpich"],
}


@pytest.fixture(params=["openmpi", pytest.param("pmi", marks=pytest.mark.slow)])
def mpirun(request, job):
    """Runs a command as several processes of one MPI job; returns what they printed."""
    command = MPIRUN[request.param]
    if shutil.which(command[0]) is None:
        pytest.skip(f"not installed: {command[0]} (Debian: openmpi-bin, mpich)")
    job.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

    def run(processes, *words):
        result = subprocess.run(
            [*command, "-np", str(processes), *map(str, words)],
            env=job.environ,
            cwd=job.directory,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=HANGING_SECONDS,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    run.origin = request.param
    return run


@pytest.mark.slow
def test_mpirun_trains_one_model_on_all_processes(mpirun, job, forked_python):
    train = forked_python, EXAMPLE, "--epochs", 1
    output = mpirun(3, "tf-config", "exec", "--start-timeout", 60, "--", *train)
    assert "weights: equal to the bit on all 3 workers" in output
    assert not {"\b", "\x1b"} & set(output)
    assert output.count("/step") == 1  # the first worker's line about the epoch
    assert list(job.directory.iterdir()) == []  # where they met, if it was here, is tidied up


def test_all_processes_know_the_same_cluster(mpirun):
    output = mpirun(4, "tf-config", "exec", "--", "sh", "-c", "echo $TF_CONFIG")
    clusters = {line.partition(', "task"')[0] for line in output.splitlines()}
    assert len(clusters) == 1
    assert len(set(output.splitlines())) == 4


def test_show_says_where_it_comes_from(mpirun, job):
    # mpirun may mix up what two processes print at once.
    mpirun(2, "sh", "-c", "tf-config show >$(mktemp shown-XXXXXX)")
    shown = [path.read_text() for path in job.directory.glob("shown-*")]
    assert len(shown) == 2
    for text in shown:
        assert f"read from: {mpirun.origin}\n" in text
        assert text.count("this task") == 1
