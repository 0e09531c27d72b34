"""A process that briefly outlives the launcher, to end processes that the launcher did not end.

It reads process group IDs from its standard input: `N` to watch a group, `-N` to forget it. When
the input ends, the launcher is gone (perhaps by SIGKILL, which cannot be caught), and the reaper
kills every group that it still watches. See [Note: the end of a job] in `runner.py`. The agent on
another host has a reaper as well.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from types import TracebackType


class OrphanReaper:
    """Kills the process groups that it watches, once this process is gone; a context manager.

    The pipe to the reaper shows it that this process is alive. No task inherits this process's end
    of the pipe, because Python closes descriptors in the programs that it starts; otherwise a task
    that is left behind would keep the reaper waiting.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tf_config.launcher.orphan_reaper"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # a signal to this process's group must not kill the reaper
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    def watch(self, group: int) -> None:
        """Starts watching a process group."""
        self._send(group)

    def forget(self, group: int) -> None:
        """Stops watching a process group, which has ended."""
        self._send(-group)

    def _send(self, number: int) -> None:
        with contextlib.suppress(BrokenPipeError):
            print(number, file=self._process.stdin, flush=True)

    def __enter__(self) -> OrphanReaper:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ends the reaper, which kills the groups that were not forgotten."""
        self._process.communicate()


def main() -> None:
    """Watches process groups until standard input ends, then kills the remaining ones."""
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
