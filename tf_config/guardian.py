"""A process that outlives the launcher by a moment, to end what the launcher could not.

It reads process group numbers from its standard input: `N` to watch, `-N` to forget. When the
input ends, the launcher is gone (even by SIGKILL, which nobody can catch): it ends every group
still watched.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys


def main() -> None:
    """Watches until standard input ends, then kills."""
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
