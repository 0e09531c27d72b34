"""A job that continues without a lost host, and takes it again; without a network."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

# Runs the command of a host here, unless the host is "gone".
SSH = """#!/bin/sh
while [ $# -gt 2 ]; do shift; done
[ -e "gone-$1" ] && { echo "no route to $1" >&2; exit 255; }
exec sh -c "$2"
"""
LAUNCH = """
import sys
from tf_config.launcher import runner
runner.GROWTH_SECONDS = 0.3
from tf_config.cli import main
sys.exit(main(sys.argv[1:]))
"""
# The second host is lost in the first attempt, and returns in the second one.
PROGRAM = """
import json, os, pathlib, sys, time
from tf_config.launcher.progress_file import Report, Sample, file_of, write_report
config = json.loads(os.environ.get("TF_CONFIG", '{}'))
me, count = config["task"]["index"], len(config["cluster"]["worker"])
print("start", me, "of", count, os.environ["KERAS_STRATEGIES_RESTARTS"], flush=True)
gone, lost, saves = map(pathlib.Path, ("gone-b", "lost", "saves"))
if not lost.exists():
    pathlib.Path(f"ready-{me}").touch()
    while not pathlib.Path(f"ready-{1 - me}").exists():
        time.sleep(0.01)
    if me == 1:
        gone.touch()
        lost.touch()
        sys.exit(3)
    time.sleep(60)
if count == 1:
    gone.unlink()
    for number in range(1 + 299 * saves.exists()):
        if saves.exists():
            write_report(file_of(), Report(0.0, [Sample("checkpoint_time", number, (".",))]))
        time.sleep(0.1)
    time.sleep(3)
    print("no growth", flush=True)
"""


def run(directory, *, saves, program=PROGRAM):
    ssh, script = directory / "ssh", directory / "train.py"
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    script.write_text(program)
    if saves:
        (directory / "saves").touch()
    command = [
        *(sys.executable, "-c", LAUNCH, "run", "--workers", "2", "--hosts", "a,b", "--ssh", ssh),
        *("--max-restarts", "1", "--min-workers", "1", "--start-timeout", "20", script),
    ]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


def test_a_host_that_returns_is_taken_again_after_the_next_checkpoint(tmp_path):
    code, output = run(tmp_path, saves=True)
    assert code == 0, output
    starts = [line.partition("] start ")[2] for line in output.splitlines() if "] start " in line]
    # All three attempts, of which only the second one follows a failure.
    assert sorted(starts) == ["0 of 1 1", "0 of 2 0", "0 of 2 1", "1 of 2 0", "1 of 2 1"], output
    assert "restart 1 of 1" in output and "restart 2" not in output
    for text in (
        "b cannot be reached: 'no route to b'; the job continues with 1 of its workers, renumbered",
        "b can be reached again, and a checkpoint is complete",
        "b can be reached again; the job continues with 2 of its workers, renumbered",
    ):
        assert text in output, output


@pytest.mark.slow
def test_without_checkpoints_the_job_goes_on_as_it_is(tmp_path):
    code, output = run(tmp_path, saves=False)
    assert code == 0 and "no growth" in output, output
    assert "can be reached again" not in output
