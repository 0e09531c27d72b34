"""A sidecar in a separate process, for a program that replaces this process (exec)."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping

from tf_config.launcher.sidecar import Sidecar, describe_unsynchronized

_POLL_SECONDS = 0.5


def fork_sidecar(environ: Mapping[str, str]) -> dict[str, str]:
    """Starts the sidecar of a program; returns the variables to add to the program's environment.

    The sidecar is not a child of this process, because a program may wait for all of its children.
    It ends when this process ends.
    """

    def note(text: str) -> None:
        print(f"tf-config: {text}", file=sys.stderr, flush=True)

    sidecar = Sidecar.beside(environ, note)
    if sidecar is None:
        return {}
    program = os.getpid()
    ready, done = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.fork() == 0:
                _run(sidecar, program, done)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(done)
    sidecar.close()  # in this process; the sidecar's process keeps its servers
    os.read(ready, 1)  # waits until the sidecar serves and closes its end, or has failed
    os.close(ready)
    return sidecar.environ


def _run(sidecar: Sidecar, program: int, ready: int) -> None:
    """Serves until the program has ended, then prints a warning if it did not join the others."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):  # otherwise, readers of the output would wait for the sidecar
        os.dup2(nothing, descriptor)
    sidecar.start(program)
    end = _end_check_of(program)
    os.close(ready)
    while not end():
        pass
    if sidecar.is_unsynchronized:
        # The sidecar does not know how the program ended.
        text = f"{describe_unsynchronized([sidecar.task])} (An earlier failure also causes this.)"
        print(f"tf-config: {text}", file=sys.stderr, flush=True)


def _end_check_of(pid: int) -> Callable[[], bool]:
    """Returns a function that waits briefly for a process and returns whether it has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except (AttributeError, OSError):

        def is_gone() -> bool:
            time.sleep(_POLL_SECONDS)
            return not os.path.exists(f"/proc/{pid}/fd")

        return is_gone
    return lambda: bool(select.select([descriptor], [], [], _POLL_SECONDS)[0])
