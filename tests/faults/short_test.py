"""`make faults SHORT=1` finds nothing."""

import resource
import subprocess
import sys

import pytest

from tests.support.job import ROOT


@pytest.mark.processes
def test_a_short_run_of_all_faults_loses_nothing_and_leaves_nothing(forked_python):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "tools/faults.py", "--short", "--seed", "1"]
    command += ["--python", forked_python]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(run.stdout, f"{used:.0f} s of processor time")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "| SIGKILL of launcher, TensorFlow's collectives | 1 | 1 |" in run.stdout
