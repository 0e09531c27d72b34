"""A program with a session and a terminal of its own, and all that it starts."""

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


class Session:
    """A running program, the leader of a session, that writes to a terminal.

    A terminal and not a pipe: progress bars are then drawn in place instead of line by line,
    and nothing is held back in a buffer.

    Args:
      argv: the program and its arguments.
      environ: its whole environment.
      size: the terminal's columns and lines.
      stdin: as in subprocess.Popen.

    Attributes:
      popen: the process.
      terminal: the descriptor to read what it and its children write.

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
                start_new_session=True,
            )
        except OSError:
            os.close(self.terminal)
            raise
        finally:
            os.close(end)

    def read(self) -> bytes:
        """Returns what there is to read; nothing once all writers are gone."""
        try:
            return os.read(self.terminal, 1 << 16)
        except OSError:  # Linux' way to say that nobody has the other end open
            return b""

    def signal(self, number: int) -> None:
        """Sends a signal to the program and all it started, if any is left."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, number)

    def kill(self) -> None:
        """Ends the program and all it started, at once."""
        self.signal(signal.SIGKILL)
        self.popen.wait()


def shell_code(code: int) -> int:
    """Returns a process's exit code as a shell gives it: 128 + N for signal N.

    >>> shell_code(-9), shell_code(3)
    (137, 3)
    """
    return code if code >= 0 else 128 - code


def _set_up_terminal(terminal: int, size: tuple[int, int]) -> None:
    """Makes it pass on what is written, without a \\r before each \\n; gives it a size."""
    attributes = termios.tcgetattr(terminal)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(terminal, termios.TCSANOW, attributes)
    columns, lines = size
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
