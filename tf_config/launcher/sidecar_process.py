"""A process beside a program that replaces this process (exec): its sidecar and its metrics."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping

from tf_config.cluster import Task
from tf_config.errors import ClusterConfigError
from tf_config.launcher.descriptors import wait_for_descriptors
from tf_config.launcher.metrics import MetricsPage, TaskMetrics
from tf_config.launcher.process_memory import resident_of
from tf_config.launcher.progress_file import ProgressFile
from tf_config.launcher.sidecar import Sidecar, describe_unsynchronized

_POLL_SECONDS = 0.5
_LONGEST_ANSWER = 1 << 12


def fork_sidecar(
    environ: Mapping[str, str], task: Task, page: MetricsPage | None = None, restarts: int = 0
) -> dict[str, str]:
    """Starts the sidecar of a program; returns the variables to add to the program's environment.

    The sidecar is not a child of this process, because a program may wait for all of its children.
    It ends when this process ends.

    Args:
      environ: the environment of the program.
      task: the task of the program.
      page: a page that shows the program's numbers, served by the same process as the sidecar.
      restarts: the number of restarts so far, for the page.

    Raises:
      ClusterConfigError: if the page cannot be served.
    """

    def note(text: str) -> None:
        print(f"tf-config: {text}", file=sys.stderr, flush=True)

    sidecar = Sidecar.beside(environ, note)
    if sidecar is None and page is None:
        return {}
    program = os.getpid()
    ready, done = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.fork() == 0:
                file = None
                if page is not None:
                    # Created here, because its path has the number of the process that holds it.
                    file = ProgressFile()
                    page.show(_reader(task, program, file), lambda: restarts)
                _run(sidecar, page, file, program, done)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(done)
    for server in (sidecar, page):
        if server is not None:
            server.close()  # in this process; the sidecar's process keeps its servers
    answer = os.read(ready, _LONGEST_ANSWER)  # empty if the sidecar has failed
    os.close(ready)
    if page is not None and not answer:
        raise ClusterConfigError(
            "--metrics-port requires a process beside the program. Received: one that ended at "
            "once. Omit the option."
        )
    of_file = json.loads(answer) if answer else {}
    return {**({} if sidecar is None else sidecar.environ), **of_file}


def _reader(task: Task, program: int, file: ProgressFile) -> Callable[[], list[TaskMetrics]]:
    return lambda: [TaskMetrics(task, resident_of(program), file.report())]


def _run(
    sidecar: Sidecar | None,
    page: MetricsPage | None,
    file: ProgressFile | None,
    program: int,
    ready: int,
) -> None:
    """Serves until the program has ended, then prints a warning if it did not join the others."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):  # otherwise, readers of the output would wait for the sidecar
        os.dup2(nothing, descriptor)
    if sidecar is not None:
        sidecar.start(program)
    if page is not None:
        page.start()
    end = _end_check_of(program)
    os.write(ready, json.dumps({} if file is None else file.environ).encode())
    os.close(ready)
    while not end():
        pass
    if sidecar is not None and sidecar.is_unsynchronized:
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
    return lambda: bool(wait_for_descriptors([descriptor], _POLL_SECONDS))
