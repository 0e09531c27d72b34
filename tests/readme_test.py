"""The README's commands, typed as they stand there."""

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.documents import blocks
from tests.support.job import HANGING_SECONDS

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "README.md").read_text()
COMMANDS = [
    line.removeprefix("$ ")
    for block in re.findall(r"```console\n(.*?)```", TEXT, re.S)
    for line in block.splitlines()
    if line.startswith("$ ")
]


EXAMPLE = "run --workers 2 examples/digits.py"  # what 'make demo' trains
EPOCHS = 12


def test_the_commands_come_before_anything_optional():
    assert COMMANDS == ["pip install .", "tf-config run --workers 2 train.py"]
    assert TEXT.index(COMMANDS[-1]) < TEXT.index("install-horovod")


@pytest.mark.slow  # as are the next ones; tests/examples/headers_test.py runs examples
@pytest.mark.processes
def test_the_example_trains(forked):
    (forked.directory / "examples").symlink_to(ROOT / "examples")
    process = forked.popen([forked.python, "-m", "tf_config", *EXAMPLE.split()])
    code, output = forked.finish(process, timeout=HANGING_SECONDS)
    assert code == 0, output
    check_training(output)
    forked.assert_nothing_left()


@pytest.mark.slow
def test_the_commands_work(job, tmp_path):
    """All in one shell, in their order, as a reader would, in a clone and a new environment.

    Other packages are those of this environment, so nothing is downloaded.
    """
    clone, environment = tmp_path / "clone", tmp_path / "environment"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    (own,) = environment.glob("lib/python*/site-packages")
    (own / "installed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    script, *_ = blocks(ROOT / "README.md", "python")
    (clone / "train.py").write_text(script.text)
    environ = {
        **job.environ,
        "PATH": f"{environment / 'bin'}:{job.environ['PATH']}",
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # which pip reads as the option, not as its contrary
    }
    del environ["PYTHONPATH"]
    process = subprocess.run(
        ["bash", "-c", "\n".join(["set -e", *COMMANDS])],
        cwd=clone,
        env=environ,
        capture_output=True,
        text=True,
        timeout=HANGING_SECONDS,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    accuracy = float(re.search(r"\[worker 0\] accuracy: ([\d.]+)", process.stdout)[1])
    assert accuracy > 0.9
    assert not re.search(r"\bI0000\b|InitializeLog", process.stdout)
    assert (own / "strategies").is_dir()
    job.assert_nothing_left()


def check_training(output):
    assert "weights: equal to the bit on all 2 workers" in output
    bars = [line for line in output.splitlines() if re.search(r"23/23 .*accuracy", line)]
    assert len(bars) == EPOCHS, "one worker shows its progress"
    assert all(line.startswith("[worker 0]") for line in bars)
    assert re.search(r"\[worker 0\] training speed: \d+ samples/s", output)
    assert float(re.search(r"test accuracy: ([\d.]+)", output)[1]) >= 0.97
    assert not re.search(r"\bI0000\b|InitializeLog", output)


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
