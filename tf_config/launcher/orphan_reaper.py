"""A process that briefly outlives the launcher, to end the processes that the launcher could not.

It reads process group IDs from its standard input: `N` to watch a group, `-N` to forget it. When
the input ends, the launcher is gone (even after SIGKILL, which cannot be caught), and the reaper
kills every group that it still watches. See [Note: the end of a job] in `runner.py`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys


def main() -> None:
    """Watches groups until standard input ends, then kills those that are left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line)
        if group > 0:
            groups.add(group)
        else:
            groups.discard(-group)
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
