"""Runs a part of the tests on other versions of TensorFlow and Python.

    $ .venv/bin/python tools/versions.py [NAME ...]

Each has an environment in build/versions, made once. Where a Python cannot be found, that is said,
and the exit code is 1.

`pre-releases` has the newest pre-releases on the package index. Its environment is updated in each
run. What fails there is listed, and does not count.
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
    """What an environment has.

    Attributes:
      python: the version of Python.
      packages: what pip installs.
      is_pre: whether these are the newest pre-releases, which may fail.
    """

    python: str
    packages: tuple[str, ...]
    is_pre: bool = False


def release(python: str, tensorflow: str) -> Versions:
    """Returns an environment with a release of TensorFlow, and the newest Keras."""
    return Versions(python, (f"tensorflow=={tensorflow}.*", f"tf_keras=={tensorflow}.*"))


# The versions at both ends, and those between them on one Python.
ENVIRONMENTS = {
    "tensorflow-2.18": release("3.11", "2.18"),
    "tensorflow-2.19": release("3.11", "2.19"),
    "tensorflow-2.20": release("3.11", "2.20"),
    "python-3.10": release("3.10", "2.21"),
    "python-3.12": release("3.12", "2.21"),
    "python-3.13": release("3.13", "2.21"),
    # A release candidate of TensorFlow asks for the Keras that will be released with it.
    "pre-releases": Versions("3.11", ("tensorflow", "keras-nightly"), is_pre=True),
}
# One program of each kind on clusters: both communications, servers, the embedding; and what runs
# in this process. Each part is one run of pytest, by its arguments.
SUBSET = {
    "on clusters": (
        "tests/strategies/multi_worker_test.py",
        "tests/strategies/parameter_server_test.py",
        "tests/strategies/embedding/layer_test.py",
        "-k",
        "parity and keras-2 or compression or with_momentum or life",
    ),
    "in one process": (
        "tests/strategies/central_storage_test.py",
        "tests/strategies/mirrored_test.py",
        "tests/strategies/earlier_files_test.py",
        "tests/strategies/data/sharding_test.py",
        "tests/strategies/compat/keras_test.py",
        "tests/faults/checkpoint_test.py",
        "tests/faults/resume_test.py",
        "tests/tf_config",
        "--ignore=tests/tf_config/doctor/report_test.py",
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
    counted = [each for name, each in outcomes.items() if not ENVIRONMENTS[name].is_pre]
    return sum(not outcome.startswith("passed") for outcome in counted)


def tested(name: str) -> str:
    """Returns how the subset ended in an environment, in words."""
    environment, versions = HOME / name, ENVIRONMENTS[name]
    if versions.is_pre or not (environment / ".ready").exists():
        found = interpreter(versions.python)
        if found is None:
            return f"no Python {versions.python} here"
        if not made(environment, found, versions):
            return "could not be installed"
    pytest = ("-m", "pytest", "-q", "-rfE", *PARALLEL)
    failed = []
    for part, tests in SUBSET.items():
        passed, output = run_and_read(environment, *pytest, *tests)
        if not passed:
            failed += [part, *(f"\n  {line}" for line in failures(output))]
    outcome = f"failed: {', '.join(failed)}" if failed else "passed"
    return f"{outcome} ({installed(environment)})" if versions.is_pre else outcome


def failures(output: str) -> list[str]:
    """Returns the lines of pytest's summary that name what failed.

    >>> failures("..F.\\nFAILED tests/a_test.py::test_it - ValueError: no\\n1 failed")
    ['FAILED tests/a_test.py::test_it - ValueError: no']
    """
    return [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]


def installed(environment: Path) -> str:
    """Returns the versions of TensorFlow and Keras in an environment."""
    read = "import keras, tensorflow as tf; print('TensorFlow', tf.__version__, end=', ')"
    command = [
        str(environment / "bin" / "python"),
        "-c",
        f"{read}; print('Keras', keras.__version__)",
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def interpreter(version: str) -> str | None:
    """Returns a Python of a version: on the PATH, or one of pyenv's."""
    of_pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"), reverse=True)
    candidates = [shutil.which(f"python{version}"), *map(str, of_pyenv)]
    return next((python for python in candidates if python and is_usable(python)), None)


def is_usable(python: str) -> bool:
    """Returns whether a Python runs; pyenv puts commands on the PATH that it may then refuse."""
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


def made(environment: Path, python: str, versions: Versions) -> bool:
    """Makes an environment, or updates that of pre-releases; returns whether that was possible."""
    if not (versions.is_pre and (environment / ".ready").exists()):
        shutil.rmtree(environment, ignore_errors=True)
        subprocess.run([python, "-m", "venv", str(environment)], check=True)
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    if not run(environment, *pip, "setuptools", "wheel"):
        return False
    steps = [("-e", ".[test,examples]", *(() if versions.is_pre else versions.packages))]
    if versions.is_pre:
        # setup.py and the released tf_keras do not admit these yet. keras-nightly replaces keras.
        steps.append(("--pre", "--upgrade", *versions.packages))
        steps.append(("--pre", "--force-reinstall", "--no-deps", "keras-nightly"))
    if not all(run(environment, *pip, *step) for step in steps):
        return False
    if not run(environment, "-m", "tf_config", "install-horovod") and not versions.is_pre:
        return False
    (environment / ".ready").touch()
    return True


def run(environment: Path, *arguments: str) -> bool:
    """Runs the environment's Python in the root directory; returns whether it ended with 0."""
    command = [str(environment / "bin" / "python"), *arguments]
    print("$", *command, flush=True)
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def run_and_read(environment: Path, *arguments: str) -> tuple[bool, str]:
    """Does what `run` does; returns the outcome, and the standard output, which is shown, too."""
    command = [str(environment / "bin" / "python"), *arguments]
    print("$", *command, flush=True)
    lines = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line)
    return process.returncode == 0, "".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
