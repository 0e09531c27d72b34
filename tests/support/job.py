"""Jobs of several processes, started by our own launcher."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
_MARK = "KERAS_STRATEGIES_TEST"
# After this time a program hangs. It is many times what any takes: other load slows all of them.
HANGING_SECONDS = 600.0


def heed_signals() -> None:
    """Has this process, and all that it starts, end by signals that the tests' shell may ignore.

    A job in the background ignores SIGINT, and one under nohup SIGHUP.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class Job:
    """One `tf-config run` of a test, and the processes that came of it.

    Attributes:
      started: the commands that were started, the first one first.
      python: what runs Python programs; a fork of one that has imported TensorFlow for `forked`.
    """

    def __init__(self, directory: Path):
        self.python = sys.executable
        self.mark = uuid.uuid4().hex
        self.directory = directory
        self.started: list[subprocess.Popen] = []
        self.environ = {**os.environ, _MARK: self.mark, "PYTHONPATH": str(ROOT)}
        self.environ.pop("TF_CONFIG", None)
        self._initial = dict(self.environ)

    def hide_horovod(self) -> None:
        """Lets the processes that are started from now on do without Horovod and shared memory."""
        hidden = self.directory / "hidden"
        hidden.mkdir()
        (hidden / "horovod.py").write_text("raise ImportError('Horovod is hidden')\n")
        self.environ["PYTHONPATH"] = f"{hidden}:{ROOT}"
        self.environ["KERAS_STRATEGIES_COMMUNICATION"] = "tensorflow"

    def settings(self) -> tuple[tuple[str, str], ...]:
        """Returns what a test has changed in the environment, the same for all jobs like it."""
        own = str(self.directory)
        return tuple(
            (name, value.replace(own, "."))
            for name, value in sorted(self.environ.items())
            if self._initial.get(name) != value
        )

    def start(self, *arguments: object, **options: object) -> subprocess.Popen:
        """Starts `tf-config run` with the arguments; its output is one stream of text."""
        command = [self.python, "-m", "tf_config", "run", *map(str, arguments)]
        return self.popen(command, **options)

    def popen(self, command: list[str], **options: object) -> subprocess.Popen:
        """Starts any command as a part of this job, with the signals of one in the foreground."""
        process = subprocess.Popen(
            command,
            env=self.environ,
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            preexec_fn=heed_signals,
            **options,
        )
        self.started.append(process)
        return process

    def run(self, *arguments: object, timeout: float = HANGING_SECONDS) -> tuple[int, str]:
        """Runs `tf-config run` to its end; returns the exit code and the output."""
        code, output = self.finish(self.start(*arguments), timeout)
        if code is None:
            pytest.fail(f"Not done after {timeout} s: {arguments}\n{output}")
        return code, output

    def finish(self, process: subprocess.Popen, timeout: float) -> tuple[int | None, str]:
        """Returns a process's exit code and output; if it does not end, it is terminated: None."""
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.terminate()
            output, _ = process.communicate()
            return None, output
        return process.returncode, output

    def close(self) -> None:
        """Kills what is left."""
        for process in self.processes():
            process.kill()
        for process in self.started:
            process.wait()
            process.stdout.close()
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()

    def script(self, text: str, name: str = "script.py") -> Path:
        """Writes a script into the job's directory."""
        path = self.directory / name
        path.write_text(text)
        return path

    def processes(self) -> list[psutil.Process]:
        """Returns all live processes that this job started, however far down."""
        found = []
        for process in psutil.process_iter():
            try:
                if (
                    process.status() != psutil.STATUS_ZOMBIE
                    and process.environ().get(_MARK) == self.mark
                ):
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def wait_for(self, found: Callable[[], bool], within: float) -> None:
        """Waits until something is so; fails after that many seconds."""
        deadline = time.monotonic() + within
        while not found():
            if time.monotonic() > deadline:
                pytest.fail(f"Not so within {within} s.")
            time.sleep(0.02)

    def assert_nothing_left(self, within: float = 3.0) -> None:
        """Fails if a process of this job is alive after that many seconds."""
        deadline = time.monotonic() + within
        while left := self.processes():
            if time.monotonic() > deadline:
                pytest.fail(f"Still there: {[process.cmdline() for process in left]}")
            time.sleep(0.05)
