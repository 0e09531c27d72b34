"""The README's commands, typed as they stand there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.job import HANGING_SECONDS

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "README.md").read_text()
COMMANDS = [
    line.removeprefix("$ ")
    for block in re.findall(r"```console\n(.*?)```", TEXT, re.S)
    for line in block.splitlines()
    if line.startswith("$ ")
]


@pytest.mark.slow  # as are the next ones; tests/examples/headers_test.py runs examples
@pytest.mark.processes
def test_the_example_trains(forked):
    """The last command, by this process's own Python; the next test types all of them."""
    name, *words = COMMANDS[-1].split()
    assert name == ".venv/bin/tf-config"
    (forked.directory / "examples").symlink_to(ROOT / "examples")
    process = forked.popen([forked.python, "-m", "tf_config", *words])
    code, output = forked.finish(process, timeout=HANGING_SECONDS)
    assert code == 0, output
    check_training(output)
    forked.assert_nothing_left()


@pytest.mark.slow
def test_the_commands_work(job):
    """All of them in one shell, in their order, as a reader would."""
    assert len(COMMANDS) >= 2
    shell = ["set -e", *COMMANDS]
    process = subprocess.run(
        ["bash", "-c", "\n".join(shell)],
        cwd=ROOT,
        env={name: value for name, value in job.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    output = process.stdout
    assert process.returncode == 0, output + process.stderr
    demo, _, rest = output.partition("weights: equal to the bit on all 2 workers")
    accuracy = float(re.search(r"test accuracy: ([\d.]+)", demo)[1])
    assert accuracy >= 0.97
    assert re.search(r"\[worker 0\] training speed: \d+ samples/s", demo)
    check_training(rest)
    assert not re.search(r"\bI0000\b|InitializeLog", output)
    job.assert_nothing_left()


def check_training(output):
    assert "weights: equal to the bit on all 2 workers" in output
    bars = [line for line in output.splitlines() if re.search(r"23/23 .*accuracy", line)]
    assert len(bars) == 2, "one worker shows its progress, for each of two epochs"
    assert all(line.startswith("[worker 0]") for line in bars)


@pytest.mark.slow
def test_a_fresh_clone_without_anything_built_runs_the_demo(job, tmp_path):
    """What CI cannot see where an earlier run has left a wheel behind."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    environ = {**job.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    del environ["PYTHONPATH"]
    python = [f"PYTHON={sys.base_prefix}/bin/python3"]
    for _ in range(2):
        demo = subprocess.run(
            ["make", "demo", *python], cwd=clone, env=environ, capture_output=True, text=True
        )
        assert demo.returncode == 0, demo.stdout + demo.stderr
        assert "weights: equal to the bit on all 2 workers" in demo.stdout
    assert "Building" not in demo.stderr
