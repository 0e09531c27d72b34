"""The memory that this process may still take."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")


def available_memory() -> int:
    """Returns the bytes that this process may take without swapping or being killed for them.

    That is the least of what the machine and each control group of the process, such as that of a
    container or of a Slurm job, have left. Cached files count as free.

    >>> available_memory() > 1 << 20
    True
    """
    return min([_of_machine(), *_of_groups()])


def _of_machine() -> int:
    with contextlib.suppress(OSError):
        for line in (_PROC / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    # Elsewhere than on Linux: a part of the whole.
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4


def _of_groups() -> Iterator[int]:
    try:
        lines = (_PROC / "self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if not controllers:  # version 2
            root, names = _CGROUPS, ("memory.max", "memory.current", "inactive_file ")
        elif "memory" in controllers.split(","):
            root = _CGROUPS / "memory"
            names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "
        else:
            continue
        place = root / group.lstrip("/")
        # A limit of a group above holds as well. Inside a container, the path may not exist.
        for folder in (place, *place.parents):
            with contextlib.suppress(OSError, ValueError, StopIteration):
                limit = int((folder / names[0]).read_text())
                used = int((folder / names[1]).read_text())
                stat = (folder / "memory.stat").read_text().splitlines()
                cached = next(int(each.split()[1]) for each in stat if each.startswith(names[2]))
                yield max(limit - used + cached, 0)
            if folder == root:
                break
