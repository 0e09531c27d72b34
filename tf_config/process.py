"""One running task: its process, its terminal and its log."""

from __future__ import annotations

import collections
import contextlib
import fcntl
import os
import pty
import shutil
import signal
import struct
import subprocess
import termios
from pathlib import Path

from tf_config.commands import Command
from tf_config.errors import ClusterConfigError, shown
from tf_config.output import Line, LineAssembler, TaskLog, is_start_up_note

_PREFIX_WIDTH = len("[worker 00] ")
_LAST_LINES = 10


class TaskProcess:
    """The process of one task, and of all that it starts.

    Args:
      command: what it runs.
      log_dir: where its log goes; None for nowhere.
      append: whether the log goes on behind what an earlier attempt wrote.

    Raises:
      ClusterConfigError: if the program cannot be started.
    """

    def __init__(self, command: Command, log_dir: Path | None, append: bool):
        self.task = command.task
        self.lines = LineAssembler()
        self.log = TaskLog(log_dir, command.task, append)
        self.last_lines: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
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

    def take(self, line: Line) -> None:
        """Keeps a finished line."""
        self.log.line(line)
        if line.text.strip() and not is_start_up_note(line.text):
            self.last_lines.append(line.text)

    def read(self) -> bytes:
        """Returns what there is to read; nothing once all writers are gone."""
        try:
            return os.read(self.terminal, 1 << 16)
        except OSError:  # Linux' way to say that nobody has the other end open
            return b""

    @property
    def exit_code(self) -> int:
        """The exit code once it has ended, as a shell gives it: 128 + N for signal N."""
        code = self.popen.returncode
        return code if code >= 0 else 128 - code

    @property
    def end(self) -> str:
        """How it ended, in words."""
        code = self.popen.returncode
        return f"exit code {code}" if code >= 0 else f"signal {-code} ({signal_name(-code)})"

    def signal(self, number: int) -> None:
        """Sends a signal to the process and all it started, if any is left."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, number)


def signal_name(number: int) -> str:
    """Returns `SIGTERM` for 15."""
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
