"""A file in memory in which a task's process records where it is, and its numbers.

The process writes, and the program that has started it reads: the launcher, its agent on another
host, or the sidecar of `exec`. What a process has written can still be read after it was killed.
"""

from __future__ import annotations

import json
import os
import threading
import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tf_config.launcher.settings import PROGRESS_VARIABLE

# The text is at the beginning of the file, and the numbers follow.
_TEXT_BYTES = 1 << 10
# The size of the numbers in bytes and their checksum, in hexadecimal.
_HEADER = "{:08x} {:08x}\n"
_HEADER_BYTES = len(_HEADER.format(0, 0))
_MOST_BYTES = 1 << 24


class Sample(NamedTuple):
    """A number of a task.

    Attributes:
      name: the name of the metric, as in `METRICS` of metrics.py.
      value: the number.
      labels: the values of the metric's own labels, in their order.
    """

    name: str
    value: float
    labels: tuple[str, ...] = ()


class Report(NamedTuple):
    """The numbers of a task at one time.

    Attributes:
      time: the time of the task's host, in seconds of the wall clock.
      samples: the numbers.
    """

    time: float
    samples: Sequence[Sample]

    def to_json(self) -> str:
        """Returns the report as JSON, which `from_json` reads."""
        return json.dumps([self.time, self.samples])

    @classmethod
    def from_json(cls, text: str | bytes) -> Report | None:
        """Returns the report in a text; None if it is none, such as one of another version.

        >>> Report.from_json(Report(9.0, [Sample("steps_total", 2)]).to_json()).samples
        [Sample(name='steps_total', value=2, labels=())]
        >>> Report.from_json('[1, [["steps_total", "many", []]]]') is None
        True
        """
        try:
            time, samples = json.loads(text)
            report = cls(time, [Sample(name, value, (*labels,)) for name, value, labels in samples])
        except (TypeError, ValueError, RecursionError):
            return None
        numbers = [report.time, *(sample.value for sample in report.samples)]
        words = [word for name, _, labels in report.samples for word in (name, *labels)]
        is_valid = all(isinstance(number, int | float) for number in numbers)
        return report if is_valid and all(isinstance(word, str) for word in words) else None


class ProgressFile:
    """The file of one process, as the program that has started it sees it.

    Attributes:
      environ: the variables to add to the environment of the process.
    """

    def __init__(self) -> None:
        self._file: int | None = None
        self._lock = threading.Lock()  # a page of metrics is served by another thread
        self._report: Report | None = None
        self.environ: dict[str, str] = {}
        if hasattr(os, "memfd_create"):  # a file in memory, which disappears with this process
            self._file = os.memfd_create("progress")
            self.environ = {PROGRESS_VARIABLE: f"/proc/{os.getpid()}/fd/{self._file}"}

    def text(self) -> str:
        """Returns the last text that the process wrote; "" if there is none."""
        return self._read(_TEXT_BYTES, 0).decode(errors="replace").strip("\0 \n")

    def report(self) -> Report | None:
        """Returns the last numbers that the process wrote; None if there are none."""
        header = self._read(_HEADER_BYTES, _TEXT_BYTES)
        try:
            size, checksum = (int(word, 16) for word in header.split())
        except ValueError:
            return self._report
        data = self._read(min(size, _MOST_BYTES), _TEXT_BYTES + _HEADER_BYTES)
        # The process may be writing at the same time. Then the previous numbers are still valid.
        if len(data) == size and zlib.crc32(data) == checksum:
            self._report = Report.from_json(data)
        return self._report

    def close(self) -> None:
        """Frees the memory."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def _read(self, size: int, offset: int) -> bytes:
        with self._lock:
            return b"" if self._file is None else os.pread(self._file, size, offset)


def write_progress(path: str, text: str) -> None:
    """Writes where this process is, replacing what it wrote before.

    Raises:
      OSError: if the file cannot be written.
    """
    data = text.encode(errors="replace")[: _TEXT_BYTES - 1]
    _write(path, data.ljust(_TEXT_BYTES), 0)


def write_report(path: str, report: Report) -> None:
    """Writes the numbers of this process, replacing those that it wrote before.

    Raises:
      OSError: if the file cannot be written.
    """
    data = report.to_json().encode()
    header = _HEADER.format(len(data), zlib.crc32(data)).encode()
    _write(path, header + data, _TEXT_BYTES)


def file_of(environ: Mapping[str, str] = os.environ) -> str:
    """Returns the path of this process's progress file; "" if no program reads it."""
    return environ.get(PROGRESS_VARIABLE, "")


def _write(path: str, data: bytes, offset: int) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(descriptor, data, offset)
    finally:
        os.close(descriptor)
