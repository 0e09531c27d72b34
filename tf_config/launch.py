"""The processes of a job on this machine, from their start to the end of the last one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import selectors
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tf_config.cluster import VARIABLE, ClusterSpec, Task, TFConfig
from tf_config.errors import ClusterConfigError, shown
from tf_config.output import Console, LineAssembler, TaskLog

START_TIMEOUT_VARIABLE = "KERAS_STRATEGIES_START_TIMEOUT"
GRACE_SECONDS = 5.0
_TICK_SECONDS = 0.2
_PREFIX_WIDTH = len("[worker 00] ")


@dataclass(frozen=True)
class Command:
    """What is started for one task.

    Attributes:
      task: the task.
      argv: the program and its arguments.
      environ: its whole environment.
    """

    task: Task
    argv: tuple[str, ...]
    environ: Mapping[str, str]


def argv(program: Sequence[str]) -> tuple[str, ...]:
    """Returns what to start for a program and its arguments; `x.py` runs in this Python.

    Raises:
      ClusterConfigError: if it is a script that does not exist.
    """
    if not program[0].endswith(".py"):
        return tuple(program)
    if not Path(program[0]).is_file():
        raise ClusterConfigError(
            f"A job runs a program. Received: {shown(program[0])}, which is no file here. "
            "Correct the path."
        )
    return (sys.executable, *program)


def command(config: TFConfig, what: tuple[str, ...], environ: Mapping[str, str]) -> Command:
    """Returns the command of one task: `what` in `environ`, with the task's TF_CONFIG.

    TensorFlow's notes are off (TF_CPP_MIN_LOG_LEVEL=1) unless `environ` says otherwise.
    """
    defaults = {"TF_CPP_MIN_LOG_LEVEL": "1", "PYTHONUNBUFFERED": "1"}
    return Command(config.task, what, {**defaults, **environ, VARIABLE: config.to_json()})


def plan(
    cluster: ClusterSpec,
    program: Sequence[str],
    environ: Mapping[str, str],
    start_timeout: float | None = None,
) -> list[Command]:
    """Returns the commands of all tasks.

    Args:
      cluster: the tasks.
      program: what each runs, and its arguments.
      environ: what each inherits.
      start_timeout: seconds that a task waits for the others to start; None for the default.

    Raises:
      ClusterConfigError: if the program is a script that does not exist.
    """
    if start_timeout is not None:
        environ = {**environ, START_TIMEOUT_VARIABLE: f"{start_timeout:g}"}
    what = argv(program)
    return [command(TFConfig(cluster, task), what, environ) for task in cluster.addresses]


def run(commands: Sequence[Command], stream: TextIO, log_dir: Path | None = None) -> int:
    """Runs all commands until the last one has ended, and returns the job's exit code.

    When one fails, the others get SIGTERM, and SIGKILL 5 seconds later. SIGINT, SIGTERM and
    SIGHUP are passed on; then the code is 128 + the signal's number, as in a shell. No process
    of a task's process group is left behind, nor if this process is killed itself.

    Args:
      commands: one for each task, the first task first.
      stream: where the tasks' lines go.
      log_dir: where `<task>.log` files go; None for none. Made if it does not exist.

    Returns:
      0, or the exit code of the task that failed first (128 + N if signal N ended it).

    Raises:
      ClusterConfigError: if a program cannot be started or the log directory not be made.
    """
    if log_dir is not None:
        try:
            log_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ClusterConfigError(
                f"Logs go to a directory. Received: {shown(str(log_dir))} ({error.strerror}). "
                "Name one that can be made."
            ) from None
    return _Job(Console(stream, commands[0].task), log_dir).run(commands)


class _Process:
    """One running task: its process, its terminal and its log."""

    def __init__(self, command: Command, log_dir: Path | None):
        self.task = command.task
        self.lines = LineAssembler()
        self.log = TaskLog(log_dir, command.task)
        # A terminal and not a pipe: progress bars are then drawn in place instead of line by
        # line, and nothing is held back in a buffer.
        self.terminal, end = pty.openpty()
        _set_up_terminal(end)
        try:
            self.popen = subprocess.Popen(
                command.argv,
                env=dict(command.environ),
                stdin=subprocess.DEVNULL,
                stdout=end,
                stderr=end,
                start_new_session=True,
            )
        except OSError as error:
            os.close(self.terminal)
            raise ClusterConfigError(
                f"A job runs a program. Received: {shown(command.argv[0])} ({error.strerror}). "
                "Name a Python script or a program on the PATH."
            ) from None
        finally:
            os.close(end)

    def read(self) -> bytes:
        """Returns what there is to read; nothing once all writers are gone."""
        try:
            return os.read(self.terminal, 1 << 16)
        except OSError:  # Linux' way to say that nobody has the other end open
            return b""

    def signal(self, number: int) -> None:
        """Sends a signal to the process and all it started, if any is left."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, number)


class _Job:
    """All processes of one run: their output, their ends and the order of their stopping."""

    def __init__(self, console: Console, log_dir: Path | None):
        self._console = console
        self._log_dir = log_dir
        self._processes: list[_Process] = []
        self._running: list[_Process] = []
        self._selector = selectors.DefaultSelector()
        self._escalation: list[tuple[float, int]] = []
        self._exit_code = 0
        self._parent = os.getppid()

    def run(self, commands: Sequence[Command]) -> int:
        with _guardian() as guardian, _signals() as (received, wakeup):
            self._selector.register(wakeup, selectors.EVENT_READ, None)
            try:
                for command in commands:
                    process = _Process(command, self._log_dir)
                    self._processes.append(process)
                    self._running.append(process)
                    self._selector.register(process.terminal, selectors.EVENT_READ, process)
                    _tell(guardian, process.popen.pid)
                while self._running:
                    self._pump(_TICK_SECONDS)
                    self._reap(guardian)
                    self._answer(received)
                    self._escalate()
            finally:
                for process in self._processes:
                    self._end_group(process, guardian)
                    self._drain(process)
        return self._exit_code

    def _pump(self, timeout: float) -> None:
        for key, _ in self._selector.select(timeout):
            process = key.data
            if process is None:
                os.read(key.fd, 1 << 10)
                continue
            data = process.read()
            if not data:
                self._selector.unregister(process.terminal)
            self._show(process, process.lines.feed(data))
            if process.lines.redrawn:
                self._console.progress(process.task, process.lines.partial)

    def _show(self, process: _Process, lines: list) -> None:
        for line in lines:
            process.log.line(line)
            self._console.line(process.task, line)

    def _reap(self, guardian: subprocess.Popen) -> None:
        ended = [process for process in self._running if process.popen.poll() is not None]
        for process in ended:
            self._running.remove(process)
            self._end_group(process, guardian)
        failed = [process for process in ended if process.popen.returncode != 0]
        if failed and not self._escalation:
            self._fail(failed[0])

    def _fail(self, process: _Process) -> None:
        code = process.popen.returncode
        self._exit_code = code if code > 0 else 128 - code
        how = f"exit code {code}" if code > 0 else f"signal {-code} ({_signal_name(-code)})"
        log = "" if process.log.path is None else f"; its log is {process.log.path}"
        self._console.note(f"{process.task} failed with {how}{log}")
        self._stop(signal.SIGTERM, signal.SIGKILL)

    def _answer(self, received: list[int]) -> None:
        if os.getppid() != self._parent and not _is_detached():
            self._parent = os.getppid()
            received.append(signal.SIGHUP)
        while received:
            number = received.pop(0)
            self._exit_code = 128 + number
            if self._escalation:  # asked a second time: at once
                self._stop(signal.SIGKILL)
            elif number == signal.SIGINT:
                self._stop(signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
            else:
                self._stop(number, signal.SIGKILL)

    def _stop(self, *numbers: int) -> None:
        """Sends the first signal now and each further one 5 seconds after the one before."""
        if self._running:
            names = ", ".join(str(process.task) for process in self._running)
            self._console.note(f"ending {names} ({_signal_name(numbers[0])})")
        now = time.monotonic()
        self._escalation = [(now + n * GRACE_SECONDS, sig) for n, sig in enumerate(numbers)]
        self._escalate()

    def _escalate(self) -> None:
        # The last entry stays, for the list says as well that the job is ending.
        while self._escalation and self._escalation[0][0] <= time.monotonic():
            _, number = self._escalation[0]
            for process in self._running:
                process.signal(number)
            if len(self._escalation) == 1:
                self._escalation = [(float("inf"), number)]
                break
            self._escalation.pop(0)

    def _end_group(self, process: _Process, guardian: subprocess.Popen) -> None:
        process.signal(signal.SIGKILL)
        process.popen.wait()
        _tell(guardian, -process.popen.pid)

    def _drain(self, process: _Process) -> None:
        """Takes over what the process wrote before it ended."""
        os.set_blocking(process.terminal, False)
        while data := process.read():
            self._show(process, process.lines.feed(data))
        self._show(process, process.lines.close())
        process.log.close()
        os.close(process.terminal)


@contextlib.contextmanager
def _guardian() -> Iterator[subprocess.Popen]:
    guardian = subprocess.Popen(
        [sys.executable, "-m", "tf_config.guardian"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        yield guardian
    finally:
        guardian.communicate()


def _tell(guardian: subprocess.Popen, group: int) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(group, file=guardian.stdin, flush=True)


@contextlib.contextmanager
def _signals() -> Iterator[tuple[list[int], int]]:
    """Collects SIGINT, SIGTERM and SIGHUP instead of dying of them.

    Yields the list of those received, and a descriptor that is readable after any of them and
    after the end of a process: who ended first is seen even where the others follow at once.
    """
    received: list[int] = []
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # nohup
        numbers.remove(signal.SIGHUP)
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    before = {
        number: signal.signal(number, lambda number, _: received.append(number))
        for number in numbers
    }
    before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
    fd_before = signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    try:
        yield received, readable
    finally:
        signal.set_wakeup_fd(fd_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(readable)
        os.close(writable)


def _is_detached() -> bool:
    """Whether the user took this process off its parent: nohup, setsid."""
    return signal.getsignal(signal.SIGHUP) == signal.SIG_IGN or os.getsid(0) == os.getpid()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _set_up_terminal(terminal: int) -> None:
    """Makes it pass on what is written, without a \\r before each \\n; gives it a width."""
    attributes = termios.tcgetattr(terminal)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(terminal, termios.TCSANOW, attributes)
    columns, lines = shutil.get_terminal_size()
    size = struct.pack("HHHH", lines, max(columns - _PREFIX_WIDTH, 20), 0, 0)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)
