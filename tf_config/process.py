"""One running task: its process, here or on another host, its lines and its log."""

from __future__ import annotations

import collections
import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tf_config import remote
from tf_config.commands import Command
from tf_config.errors import ClusterConfigError, shown
from tf_config.memory import kills_of_cgroup, peak_of, was_killed_by_kernel
from tf_config.output import Line, LineAssembler, TaskLog, is_start_up_note
from tf_config.session import Session, shell_code
from tf_config.sidecar import APART, Sidecar

_PREFIX_WIDTH = len("[worker 00] ")
_LAST_LINES = 10
_LOST = 255  # how ssh ends when the connection does
_KILL_SECONDS = 3.0


class TaskProcess:
    """The process of one task, and of all that it starts.

    Args:
      command: what it runs.
      log_dir: where its log goes; None for nowhere.
      append: whether the log goes on behind what an earlier attempt wrote.
      note: takes what its sidecar has to say.

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
        self.task = command.task
        self.lines = LineAssembler()
        self.log = TaskLog(log_dir, command.task, append)
        self.last_lines: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
        self._host = command.host
        self._last_bytes = b""
        columns, lines = shutil.get_terminal_size()
        size = (max(columns - _PREFIX_WIDTH, 20), lines)
        argv = command.via or command.argv
        self._sidecar = None if command.via else Sidecar.beside(command.environ, note)
        environ = os.environ if command.via else command.environ
        if self._sidecar is not None:
            environ = {**environ, **self._sidecar.environ}
        stdin = subprocess.PIPE if command.via else subprocess.DEVNULL
        try:
            self._session = Session(argv, environ, size, stdin)
        except OSError as error:
            if self._sidecar is not None:
                self._sidecar.close()
            raise ClusterConfigError(
                f"A job runs a program. Received: {shown(argv[0])} ({error.strerror}). "
                "Name a Python script or a program on the PATH."
            ) from None
        self.popen = self._session.popen
        self.terminal = self._session.terminal
        self._peak = 0
        self._kills, self._started = kills_of_cgroup(), time.monotonic()
        if self._sidecar is not None:
            self._sidecar.start(self.popen.pid)
        if command.via:
            self._tell(remote.request(command, size))

    def read(self) -> bytes:
        """Returns what there is to read; nothing once all writers are gone."""
        data = self._session.read()
        if self._host is not None:
            self._last_bytes = (self._last_bytes + data)[-len(APART) :]
        return data.removesuffix(APART)

    @property
    def is_apart(self) -> bool:
        """Whether it computed and did not join the others; to be asked when all is read."""
        if self._host is not None:
            return self._last_bytes == APART
        return self._sidecar is not None and self._sidecar.is_apart is True

    def take(self, line: Line) -> None:
        """Keeps a finished line."""
        self.log.line(line)
        if line.text.strip() and not is_start_up_note(line.text):
            self.last_lines.append(line.text)

    @property
    def place(self) -> str:
        """Where it runs, in words."""
        host = "" if self._host is None else f" on {self._host.login}, by ssh"
        return f"{host} as process {self.popen.pid}"

    @property
    def exit_code(self) -> int:
        """The exit code once it has ended, as a shell gives it: 128 + N for signal N."""
        return shell_code(self.popen.returncode)

    @property
    def end(self) -> str:
        """How it ended, in words."""
        code = self.popen.returncode
        if self._host is not None:
            if code == _LOST:
                return f"exit code {code}, or the connection to {self._host.name} was lost"
            code = 128 - code if code > 128 else code  # as a shell gives it, for want of better
        return f"exit code {code}" if code >= 0 else f"signal {-code} ({signal_name(-code)})"

    @property
    def cause(self) -> str:
        """What is known of why SIGKILL ended it, in words; "" for any other end."""
        if self._host is not None or self.popen.returncode != -signal.SIGKILL:
            return ""
        memory = f"; it had {self._peak / (1 << 30):.1f} GiB of memory" if self._peak else ""
        if was_killed_by_kernel(self.popen.pid, self._started) or kills_of_cgroup() > self._kills:
            return f"{memory}; the kernel ended it for want of memory"
        return f"{memory}; the kernel's log, as far as it can be read here, has no word of it"

    def look(self) -> None:
        """Looks at the memory that it has."""
        if self._host is None:
            self._peak = max(self._peak, peak_of(self.popen.pid))

    def signal(self, number: int) -> None:
        """Sends a signal to the process and all it started, if any is left."""
        if self._host is None:
            self._session.signal(number)
        else:
            self._tell(b"%d\n" % number)

    def beat(self) -> None:
        """Tells another host that the launcher is there."""
        if self._host is not None:
            self._tell(b"\n")

    def kill(self) -> None:
        """Ends the process and all it started, at once."""
        if self._host is not None and self.popen.poll() is None:
            self.signal(signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(_KILL_SECONDS)
        self._session.kill()

    def close(self) -> None:
        """Gives back what the process held here, when all of its output is read."""
        self.log.close()
        if self._sidecar is not None:
            self._sidecar.close()
        os.close(self.terminal)
        if self.popen.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.popen.stdin.close()

    def _tell(self, data: bytes) -> None:
        if self.popen.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.popen.stdin.write(data)
                self.popen.stdin.flush()


def signal_name(number: int) -> str:
    """Returns `SIGTERM` for 15."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
