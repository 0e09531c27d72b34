"""A running task: its process, here or on another host, its output and its log."""

from __future__ import annotations

import collections
import contextlib
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from tf_config.errors import ClusterConfigError, quoted
from tf_config.launcher import ssh as remote
from tf_config.launcher.agent_messages import MessageReader
from tf_config.launcher.commands import Command
from tf_config.launcher.console import Line, LineAssembler, TaskLog, is_noise
from tf_config.launcher.exit_diagnosis import ExitDiagnosis, describe_exit
from tf_config.launcher.metrics import TaskMetrics
from tf_config.launcher.process_memory import resident_of
from tf_config.launcher.pty_process import PtyProcess, shell_code
from tf_config.launcher.sidecar import LEFT, REJOINS, UNSYNCHRONIZED, Sidecar

_PREFIX_WIDTH = len("[worker 00] ")
_LAST_LINES = 10
_LOST = 255  # the exit code of ssh when the connection is lost
_KILL_SECONDS = 3.0


class TaskProcess:
    """The process of one task, and all processes that it starts.

    Args:
      command: the command of the task.
      log_dir: the directory of the task's log; None writes no log.
      append: whether to append to the log of an earlier attempt.
      note: receives messages about the task, such as those of its sidecar.

    Raises:
      ClusterConfigError: if the program cannot be started.
    """

    def __init__(
        self,
        command: Command,
        log_dir: Path | None,
        append: bool,
        note: Callable[[str], None] = lambda text: None,
    ):
        self.command = command
        self.task = command.task
        self._note = note
        self.lines = LineAssembler()
        self.log = TaskLog(log_dir, command.task, append)
        self.last_lines: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
        self._host = command.host
        self._shell = Path(command.via[0]).name if command.via else ""
        # What the agent has reported of a task on another host.
        self._messages = MessageReader()
        self._is_reported_unsynchronized = self._is_reported_rejoining = False
        self._is_reported_left = False
        self._remote_metrics = TaskMetrics(command.task, 0, None)
        self._stdin_lock = threading.Lock()
        columns, lines = shutil.get_terminal_size()
        size = (max(columns - _PREFIX_WIDTH, 20), lines)
        argv = command.via or command.argv
        # Both are created before the program, whose environment has their addresses. For another
        # host, the agent creates them there, and the process here is ssh.
        self._sidecar = None if command.via else Sidecar.beside(command.environ, note)
        self._diagnosis = None if command.via else ExitDiagnosis()
        environ = os.environ if command.via else command.environ
        if self._diagnosis is not None:
            environ = {**environ, **self._diagnosis.environ}
        if self._sidecar is not None:
            environ = {**environ, **self._sidecar.environ}
        stdin = subprocess.PIPE if command.via else subprocess.DEVNULL
        try:
            self._session = PtyProcess(argv, environ, size, stdin)
        except OSError as error:
            for helper in (self._sidecar, self._diagnosis):
                if helper is not None:
                    helper.close()
            raise ClusterConfigError(
                f"The program must exist and be executable. Received: {quoted(argv[0])} "
                f"({error.strerror}). Pass a Python script or a program on the PATH."
            ) from None
        self.popen = self._session.popen
        self.terminal = self._session.terminal
        if self._sidecar is not None:
            self._sidecar.start(self.popen.pid)
        if command.via:
            self._send(remote.request(command, size))

    def read(self) -> bytes | None:
        """Returns the available output; None once all writers are gone."""
        data = self._session.read()
        if self._host is None:
            return data or None
        if not data:
            return self._messages.close() or None
        output, messages = self._messages.feed(data)
        for message in messages:
            if message == UNSYNCHRONIZED:
                self._is_reported_unsynchronized = True
            elif message == REJOINS:
                self._is_reported_rejoining = True
            elif message == LEFT:
                self._is_reported_left = True
            else:
                self._remote_metrics = remote.metrics_of(self.task, message, self._remote_metrics)
        return output

    @property
    def is_unsynchronized(self) -> bool:
        """Whether the task computed without joining the others; valid once all output is read."""
        if self._host is not None:
            return self._is_reported_unsynchronized
        return self._sidecar is not None and self._sidecar.is_unsynchronized is True

    @property
    def can_rejoin(self) -> bool:
        """Whether the task, started again, can join the others; valid once all output is read."""
        if self._host is not None:
            return self._is_reported_rejoining
        return self._sidecar is not None and self._sidecar.can_rejoin

    @property
    def has_left(self) -> bool:
        """Whether the task was asked to leave the job; valid once all output is read."""
        if self._host is not None:
            return self._is_reported_left
        return self._sidecar is not None and self._sidecar.is_leaving

    def take(self, line: Line) -> None:
        """Records a finished line of output."""
        try:
            self.log.line(line)
        except OSError as error:
            self._note(f"warning: {self.log.path} ends here ({error.strerror}); the job continues")
        if self._diagnosis is not None:
            self._diagnosis.observe_output(line.text)
        if line.text.strip() and not is_noise(line.text):
            self.last_lines.append(line.text)

    @property
    def place(self) -> str:
        """A description of where the process runs."""
        host = "" if self._host is None else f" on {self._host.login}, by {self._shell}"
        return f"{host} as process {self.popen.pid}"

    @property
    def exit_code(self) -> int:
        """The exit code of the ended process as a shell reports it: 128 + N for signal N."""
        return shell_code(self.popen.returncode)

    @property
    def end(self) -> str:
        """A description of how the process ended."""
        code = self.popen.returncode
        if self._host is not None:
            if code == _LOST:
                return f"exit code {code}, or the connection to {self._host.name} was lost"
            code = 128 - code if code > 128 else code  # ssh reports codes as a shell does
        return describe_exit(code)

    @property
    def cause(self) -> str:
        """A description of why the task failed; "" if unknown, or if the agent has printed it."""
        if self._diagnosis is None:
            return ""
        return self._diagnosis.cause(self.popen.pid, self.popen.returncode)

    def sample_memory(self) -> None:
        """Measures the memory of the process, if it runs on this machine."""
        if self._diagnosis is not None:
            self._diagnosis.sample_memory(self.popen.pid)

    def metrics(self) -> TaskMetrics:
        """Returns the memory of the process and the numbers that it has reported."""
        if self._diagnosis is None:
            return self._remote_metrics
        return TaskMetrics(self.task, resident_of(self.popen.pid), self._diagnosis.report())

    def signal(self, number: int) -> None:
        """Sends a signal to the process and all processes that it started, if any are left."""
        if self._host is None:
            self._session.signal(number)
        else:
            self._send(b"%d\n" % number)

    def beat(self) -> None:
        """Sends the launcher's heartbeat to the agent, if the task runs on another host."""
        if self._host is not None:
            self._send(b"\n")

    def kill(self) -> None:
        """Kills the process and all processes that it started."""
        # If ssh were killed first, the agent on the other host would only notice that its input
        # ends, and would give the program five seconds.
        if self._host is not None and self.popen.poll() is None:
            self.signal(signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(_KILL_SECONDS)
        self._session.kill()

    def close(self) -> None:
        """Releases the resources of the process, once all of its output is read."""
        self.log.close()
        for helper in (self._sidecar, self._diagnosis):
            if helper is not None:
                helper.close()
        os.close(self.terminal)
        if self.popen.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.popen.stdin.close()

    def _send(self, data: bytes) -> None:
        if self.popen.stdin is not None:
            # Two threads write, and that of the heartbeat may find the pipe closed.
            with self._stdin_lock, contextlib.suppress(BrokenPipeError, ValueError):
                self.popen.stdin.write(data)
                self.popen.stdin.flush()
