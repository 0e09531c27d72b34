"""Runs a part of the tests on other versions of TensorFlow and Python.

    $ .venv/bin/python tools/versions.py [NAME ...]

Each has an environment in build/versions, made once. Where a Python cannot be found, that is said,
and the exit code is 1.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / "build" / "versions"


class Versions(NamedTuple):
    """What an environment has."""

    python: str
    tensorflow: str


# The versions at both ends, and those between them on one Python.
ENVIRONMENTS = {
    "tensorflow-2.18": Versions("3.11", "2.18"),
    "tensorflow-2.19": Versions("3.11", "2.19"),
    "tensorflow-2.20": Versions("3.11", "2.20"),
    "python-3.10": Versions("3.10", "2.21"),
    "python-3.12": Versions("3.12", "2.21"),
    "python-3.13": Versions("3.13", "2.21"),
}
# One program of each kind on clusters: both communications, servers, the embedding; and what runs
# in this process. Each part is one run of pytest, by its arguments.
SUBSET = {
    "on clusters": (
        "tests/strategies/multi_worker_test.py",
        "tests/strategies/parameter_server_test.py",
        "tests/strategies/embedding_test.py",
        "-k",
        "parity and (keras-2 or no_horovod) or compression or with_momentum or life",
    ),
    "in one process": (
        "tests/strategies/central_storage_test.py",
        "tests/strategies/mirrored_test.py",
        "tests/strategies/earlier_files_test.py",
        "tests/strategies/input_test.py",
        "tests/strategies/keras_test.py",
        "tests/faults/checkpoint_test.py",
        "tests/faults/resume_test.py",
        "tests/tf_config",
        "--ignore=tests/tf_config/doctor_test.py",
        "strategies",
    ),
}
PARALLEL = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")


def main(names: Sequence[str]) -> int:
    """Runs the subset in the named environments, all by default; returns how many failed."""
    unknown = [name for name in names if name not in ENVIRONMENTS]
    if unknown:
        print(f"One of {', '.join(ENVIRONMENTS)}. Received: {', '.join(unknown)}.")
        return 2
    outcomes = {}
    for name in names or ENVIRONMENTS:
        start = time.monotonic()
        outcome = tested(name)
        outcomes[name] = f"{outcome}, {(time.monotonic() - start) / 60:.0f} min"
        print(f"{name}: {outcomes[name]}", flush=True)
    print(*(f"{name}: {outcome}" for name, outcome in outcomes.items()), sep="\n")
    return sum(not outcome.startswith("passed") for outcome in outcomes.values())


def tested(name: str) -> str:
    """Returns how the subset ended in an environment, in words."""
    environment = HOME / name
    if not (environment / ".ready").exists():
        found = interpreter(ENVIRONMENTS[name].python)
        if found is None:
            return f"no Python {ENVIRONMENTS[name].python} here"
        if not made(environment, found, ENVIRONMENTS[name].tensorflow):
            return "could not be installed"
    pytest = ("-m", "pytest", "-q", *PARALLEL)
    failed = [part for part, tests in SUBSET.items() if not run(environment, *pytest, *tests)]
    return f"failed: {', '.join(failed)}" if failed else "passed"


def interpreter(version: str) -> str | None:
    """Returns a Python of a version: on the PATH, or one of pyenv's."""
    of_pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"), reverse=True)
    candidates = [shutil.which(f"python{version}"), *map(str, of_pyenv)]
    return next((python for python in candidates if python and is_usable(python)), None)


def is_usable(python: str) -> bool:
    """Returns whether a Python runs; pyenv puts commands on the PATH that it may then refuse."""
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


def made(environment: Path, python: str, tensorflow: str) -> bool:
    """Makes an environment; returns whether that was possible."""
    shutil.rmtree(environment, ignore_errors=True)
    subprocess.run([python, "-m", "venv", str(environment)], check=True)
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    packages = [f"tensorflow=={tensorflow}.*", f"tf_keras=={tensorflow}.*"]
    if not (
        run(environment, *pip, "setuptools", "wheel")
        and run(environment, *pip, "-e", ".[test,examples]", *packages)
    ):
        return False
    if not run(environment, "-m", "tf_config", "install-horovod"):
        return False
    (environment / ".ready").touch()
    return True


def run(environment: Path, *arguments: str) -> bool:
    """Runs the environment's Python in the root directory; returns whether it ended with 0."""
    command = [str(environment / "bin" / "python"), *arguments]
    print("$", *command, flush=True)
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
