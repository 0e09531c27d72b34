"""A program that runs with its own session and terminal, and all processes that it starts."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence


class PtyProcess:
    """A running program, the leader of a session, that writes to a terminal.

    With a terminal instead of a pipe, progress bars are redrawn in place instead of line by line,
    and output is not held back in a buffer.

    Args:
      argv: the program and its arguments.
      environ: the whole environment of the program.
      size: the terminal's columns and lines.
      stdin: the standard input, as in subprocess.Popen.

    Attributes:
      popen: the process.
      terminal: the descriptor from which the output of the program and its children is read.

    Raises:
      OSError: if the program cannot be started.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        size: tuple[int, int],
        stdin: int = subprocess.DEVNULL,
    ):
        self.terminal, end = pty.openpty()
        _set_up_terminal(end, size)
        try:
            self.popen = subprocess.Popen(
                list(argv),
                env=dict(environ),
                stdin=stdin,
                stdout=end,
                stderr=end,
                # Signals from the user's terminal reach only the launcher, which decides which task
                # gets which signal and when (see [Note: the end of a job] in runner.py), and all
                # processes that the program starts can be killed as one group.
                start_new_session=True,
            )
        except OSError:
            os.close(self.terminal)
            raise
        finally:
            os.close(end)  # otherwise reading would never reach the end of the output

    def read(self) -> bytes:
        """Returns the available output; empty once all writers are gone."""
        try:
            return os.read(self.terminal, 1 << 16)
        except OSError:  # on Linux: no process has the other end open
            return b""

    def signal(self, number: int) -> None:
        """Sends a signal to the program and all processes that it started, if any are left."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, number)

    def kill(self) -> None:
        """Kills the program and all processes that it started."""
        self.signal(signal.SIGKILL)
        self.popen.wait()


def shell_code(code: int) -> int:
    """Returns a process's exit code as a shell reports it: 128 + N for signal N.

    >>> shell_code(-9), shell_code(3)
    (137, 3)
    """
    return code if code >= 0 else 128 - code


def _set_up_terminal(terminal: int, size: tuple[int, int]) -> None:
    """Sets the terminal's size, and prevents it from writing a \\r before each \\n."""
    attributes = termios.tcgetattr(terminal)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(terminal, termios.TCSANOW, attributes)
    columns, lines = size
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
