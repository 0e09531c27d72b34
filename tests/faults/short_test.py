"""`make faults SHORT=1` finds nothing."""

import subprocess
import sys

import pytest

from tests.support.job import ROOT


@pytest.mark.processes
def test_a_short_run_of_all_faults_loses_nothing_and_leaves_nothing(forked_python):
    command = [sys.executable, "tools/faults.py", "--short", "--seed", "1"]
    command += ["--python", forked_python]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    print(run.stdout)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "| SIGKILL of launcher, TensorFlow's collectives | 1 | 1 |" in run.stdout
