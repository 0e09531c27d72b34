"""What is known about a failed process: its memory, its last step, and the kernel's log."""

from __future__ import annotations

import re
import signal
import time

from tf_config.launcher.console import without_escapes
from tf_config.launcher.process_memory import kills_of_cgroup, peak_of, was_killed_by_kernel
from tf_config.launcher.progress_file import ProgressFile, Report

# Messages of Python, the C++ library, TensorFlow and the C library when memory runs out.
_NO_MEMORY = re.compile(
    r"\bMemoryError\b|std::bad_alloc|ResourceExhaustedError|RESOURCE_EXHAUSTED|OOM when allocating"
    r"|Cannot allocate memory|Unable to allocate .* for an array"
)


class ExitDiagnosis:
    """Collects data about one process, to explain its failure.

    The data that explain an end by SIGKILL must be collected outside of the process and in advance:
    the process cannot print anything any more, and its files in /proc are gone. So its memory is
    sampled, and it writes its progress to memory of this process.

    Attributes:
      environ: the variables to add to the environment of the process.
    """

    def __init__(self) -> None:
        self._file = ProgressFile()
        self.environ = self._file.environ
        self._peak = 0
        self._lacked = self._last = ""
        # The count is that of the whole control group, so only an increase is meaningful.
        self._kills, self._started = kills_of_cgroup(), time.monotonic()

    def sample_memory(self, pid: int) -> None:
        """Measures the memory of the process."""
        self._peak = max(self._peak, peak_of(pid))

    def observe_output(self, text: str) -> None:
        """Searches a part of the process's output for out-of-memory errors."""
        # Python 3.13 colors tracebacks; a color's last character would adjoin the first word.
        for line in without_escapes(text).splitlines():
            if not self._lacked and _NO_MEMORY.search(line):
                self._lacked = line.strip()[:160]

    def cause(self, pid: int, code: int) -> str:
        """Returns a description of why the process failed; "" if unknown. Closes the diagnosis.

        Args:
          pid: the process ID.
          code: the return code, as in subprocess.
        """
        self.close()
        # SIGKILL leaves no message in the output; other failures are explained there.
        if code == -signal.SIGKILL:
            return f"{self._memory()}{self._describe_kernel_log(pid)}{self._progress()}"
        if self._lacked:
            return f"; it ran out of memory ({self._lacked}){self._memory()}{self._progress()}"
        return ""

    def report(self) -> Report | None:
        """Returns the last numbers that the process reported; None if there are none."""
        return self._file.report()

    def close(self) -> None:
        """Reads the last progress that the process wrote, and frees its memory."""
        self._last = self._file.text() or self._last
        self._file.close()

    def _memory(self) -> str:
        return f"; it used {self._peak / (1 << 30):.1f} GiB of memory" if self._peak else ""

    def _describe_kernel_log(self, pid: int) -> str:
        if was_killed_by_kernel(pid, self._started) or kills_of_cgroup() > self._kills:
            return "; killed by the kernel's OOM killer"
        return "; no out-of-memory record found in what can be read of the kernel's log"

    def _progress(self) -> str:
        is_known = self._last and self._last.isprintable()
        return f"; when last seen it was {self._last}" if is_known else ""


def describe_exit(code: int) -> str:
    """Returns a description of how a process ended.

    >>> describe_exit(3), describe_exit(-9)
    ('exit code 3', 'signal 9 (SIGKILL)')
    """
    return f"exit code {code}" if code >= 0 else f"signal {-code} ({signal_name(-code)})"


def signal_name(number: int) -> str:
    """Returns the name of a signal, such as `SIGTERM` for 15."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
