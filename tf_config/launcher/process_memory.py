"""The memory use of a process, and whether the kernel killed it because memory ran out."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

_PROC = Path("/proc")
_KERNEL_LOG = Path("/dev/kmsg")
_CGROUPS = Path("/sys/fs/cgroup")
# As in "6,1234,5678,-;text": a level, a number, and the microseconds since the machine was booted.
_KILLED = re.compile(
    r"^\d+,\d+,(\d+),[^;]*;.*(?:Out of memory: Killed process |oom-kill:.*\bpid=)(\d+)",
    re.MULTILINE,
)
_LOG_BYTES = 1 << 13  # the kernel returns one record at a time, of at most 8 KiB


def peak_of(pid: int) -> int:
    """Returns the peak memory of a process so far, in bytes; 0 if it cannot be read.

    >>> peak_of(os.getpid()) > 1 << 20, peak_of(0)
    (True, 0)
    """
    return _status_bytes(pid, "VmHWM:")


def resident_of(pid: int) -> int:
    """Returns the memory that a process has now, in bytes; 0 if it cannot be read.

    >>> 1 << 20 < resident_of(os.getpid()) <= peak_of(os.getpid())
    True
    """
    return _status_bytes(pid, "VmRSS:")


def _status_bytes(pid: int, name: str) -> int:
    with contextlib.suppress(OSError):
        for line in (_PROC / str(pid) / "status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) << 10
    return 0


def kills_of_cgroup() -> int:
    """Returns the number of out-of-memory kills in this process's control group."""
    for path in _counters():
        with contextlib.suppress(OSError, ValueError, IndexError):
            events = path.read_text().split()
            return int(events[events.index("oom_kill") + 1])
    return 0


def _counters() -> list[Path]:
    """Returns the possible files of this control group's counters, for versions 2 and 1."""
    try:
        lines = (_PROC / "self/cgroup").read_text().splitlines()
    except OSError:
        return []
    groups = {line.split(":", 2)[1]: line.split(":", 2)[2].lstrip("/") for line in lines}
    files = []
    if "" in groups:
        files.append(_CGROUPS / groups[""] / "memory.events")
    if "memory" in groups:
        files.append(_CGROUPS / "memory" / groups["memory"] / "memory.oom_control")
    return files


def was_killed_by_kernel(pid: int, since: float, log: Path = _KERNEL_LOG) -> bool:
    """Returns whether the kernel's log says that it killed a process because memory ran out.

    Returns False also if the log cannot be read.

    Args:
      pid: the process ID.
      since: the process's start by `time.monotonic`; an earlier process may have had the same ID.
      log: the kernel's log.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
        try:
            while record := os.read(descriptor, _LOG_BYTES):
                for match in _KILLED.finditer(record.decode(errors="replace")):
                    if int(match[2]) == pid and int(match[1]) / 1e6 >= since - 1:
                        return True
        except BlockingIOError:
            pass  # after the last record
        finally:
            os.close(descriptor)
    return False
