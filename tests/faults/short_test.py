"""`make faults SHORT=1` finds nothing."""

import subprocess
import sys

import pytest

from tests.support.job import ROOT


def run_faults(forked_python, *options):
    command = [sys.executable, "-m", "tests.faults.run", "--short", "--seed", "1", *options]
    command += ["--python", forked_python]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


# inputs_test.py and checkpoint_test.py have these faults one by one.
@pytest.mark.slow
@pytest.mark.processes
def test_wrong_inputs_and_damaged_files_lose_nothing(forked_python):
    table = run_faults(forked_python, "--only", "inputs", "files")
    assert "| files of rows: full, killed, damaged | 30 | 30 |" in table
    assert "SIGKILL" not in table


@pytest.mark.slow
@pytest.mark.processes
def test_a_short_run_of_all_faults_loses_nothing_and_leaves_nothing(forked_python):
    table = run_faults(forked_python)
    assert "| SIGKILL of launcher, TensorFlow's collectives | 1 | 1 |" in table
