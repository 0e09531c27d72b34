"""The software that is installed on a machine: programs and Python packages."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

# The directories of daemons, which Debian includes only in root's PATH.
_DAEMONS = "/usr/local/sbin:/usr/sbin:/sbin"
_HOROVOD_SECONDS = 120.0
# Prints the result of `horovodrun --check-build` without importing TensorFlow for each feature.
# Loading only the libraries takes less than a second; if that fails, TensorFlow is imported.
_HOROVOD_BUILD = """
import ctypes, glob, importlib.util, json, os
def library(package, pattern, mode=ctypes.DEFAULT_MODE):
    place = importlib.util.find_spec(package).submodule_search_locations[0]
    for path in glob.glob(os.path.join(place, pattern)):
        found = ctypes.CDLL(path, mode)
    return found
def has(name):
    return bool(getattr(horovod, f"horovod_{name}_built")())
try:
    for name in ("framework", "cc"):
        library("tensorflow", f"libtensorflow_{name}.*", ctypes.RTLD_GLOBAL)
    horovod = library("horovod", "tensorflow/mpi_lib.*")
except Exception:
    try:
        from horovod.tensorflow.mpi_ops import MPI_LIB_CTYPES as horovod
    except Exception:
        horovod = None
build = {"Frameworks": {"TensorFlow": horovod is not None}}
if horovod is not None:
    both = {"MPI": has("mpi"), "Gloo": has("gloo")}
    build |= {"Controllers": both, "Tensor Operations": {**both, "NCCL": has("nccl")}}
print("\\n" + json.dumps(build))
"""

# Horovod's features of each kind: {"Controllers": {"MPI": False, "Gloo": True}, ...}
Build = Mapping[str, Mapping[str, bool]]


class Answer(NamedTuple):
    """The result of running a program.

    Attributes:
      code: the exit code; None if the program did not end in time.
      text: the program's standard output and standard error.
    """

    code: int | None
    text: str


@dataclass(frozen=True)
class Machine:
    """A machine whose installed software can be queried; queries never raise or block for long.

    Attributes:
      path: the directories of programs, as in PATH.
      executable: the path of the Python interpreter.
      python: the version of that interpreter.
      package: returns the version of a Python package; None if it is not installed.
      environ: the environment variables.
      processor: the processor's features, such as "avx2", as in /proc/cpuinfo.
    """

    path: str
    executable: str
    python: str
    package: Callable[[str], str | None]
    environ: Mapping[str, str] = field(default_factory=dict)
    processor: Collection[str] = ()

    @classmethod
    def this(cls) -> Machine:
        """Returns this machine, with the running Python interpreter."""
        path = f"{os.environ.get('PATH', os.defpath)}:{_DAEMONS}"
        # Not `platform.python_version()`, which ends with "+" if Python was built from git.
        python = ".".join(map(str, sys.version_info[:3]))
        return cls(path, sys.executable, python, _package, os.environ, _processor())

    def has(self, program: str) -> bool:
        """Returns whether a program is installed."""
        return shutil.which(program, path=self.path) is not None

    def ask(self, program: str, *arguments: str, seconds: float = 20.0) -> Answer | None:
        """Runs a program; returns its result, or None if it does not exist or cannot be started."""
        executable = shutil.which(program, path=self.path)
        if executable is None:
            return None
        try:
            process = subprocess.Popen(
                [executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError:
            return None
        with process:
            try:
                text, _ = process.communicate(timeout=seconds)
                return Answer(process.returncode, text)
            except subprocess.TimeoutExpired:
                return Answer(None, "")
            finally:  # children that are still running may keep the output open
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)

    @functools.cached_property
    def horovod(self) -> Build | None:
        """The features that Horovod was built with; None if they are unknown."""
        answer = self.ask(self.executable, "-c", _HOROVOD_BUILD, seconds=_HOROVOD_SECONDS)
        return parse_build(answer.text) if answer is not None else None


def parse_build(text: str) -> Build | None:
    """Returns Horovod's features from the last line of a text, which is JSON; None if it is not.

    >>> parse_build('Notes\\n{"Controllers": {"MPI": false, "Gloo": true}}\\n')
    {'Controllers': {'MPI': False, 'Gloo': True}}
    """
    try:
        build = json.loads(text.splitlines()[-1])
    except (IndexError, ValueError):
        return None
    return build if isinstance(build, dict) and build else None


def _processor() -> Collection[str]:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("flags"):
                return line.split()[2:]
    return ()


def _package(name: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(name)
    except (metadata.PackageNotFoundError, KeyError):  # KeyError: its metadata is damaged
        return None
