"""Runs the processes of a job, until the last one has ended."""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import queue
import re
import selectors
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tf_config.background import call_regularly
from tf_config.cluster import Task
from tf_config.launcher.commands import Command
from tf_config.launcher.console import Console, Line, without_escapes
from tf_config.launcher.exit_diagnosis import signal_name
from tf_config.launcher.metrics import MetricsPage, TaskMetrics, checkpoint_time
from tf_config.launcher.orphan_reaper import OrphanReaper
from tf_config.launcher.places import OVER, RESTARTS, PlaceServer
from tf_config.launcher.settings import REJOINS_VARIABLE, RESTARTS_VARIABLE
from tf_config.launcher.sidecar import describe_unsynchronized
from tf_config.launcher.signals import handle_signals
from tf_config.launcher.ssh import HEARTBEAT_SECONDS
from tf_config.launcher.task_process import TaskProcess

GRACE_SECONDS = 5.0
_TICK_SECONDS = 0.2
_TRAINING = ("chief", "worker")
_MOST_NAMES = 4
_SAMPLE_SECONDS = 1.0
# How often a job that runs without a lost host looks whether it can be reached again.
GROWTH_SECONDS = 30.0
_SIGNALS = 128  # higher exit codes are those of processes that a signal has ended
# The beginning of a traceback, which may follow a progress bar, or a line of TensorFlow's C++ code
# about connections that have ended.
_LAST_WORDS = re.compile(
    r"Traceback \(most recent call last\):|Exception ignored in|Exception in thread "
    r"|Error in atexit|^[WE]\d{4} \d\d:\d\d:"
)


def run(
    plan: Callable[[int], Sequence[Command]],
    console: Console,
    log_dir: Path | None = None,
    max_restarts: int = 0,
    on_failure: Callable[[Task], None] = lambda task: None,
    page: MetricsPage | None = None,
    find_returned: Callable[[], Sequence[str]] = lambda: (),
    min_workers: int | None = None,
    places: PlaceServer | None = None,
) -> int:
    """Runs all commands until the last one has ended, and returns the job's exit code.

    When all other tasks are done, the parameter servers are ended. When a task fails, the others
    get SIGTERM, and SIGKILL 5 seconds later; then all tasks are restarted, if restarts are left. A
    worker or server that has reported that it can join the others again is restarted alone, while
    they continue; if a worker fails again and `min_workers` others remain, they continue without
    it. If lost hosts return, all tasks are restarted with them after the next checkpoint; this is
    not one of the restarts after a failure. SIGINT, SIGTERM and SIGHUP are passed on and end the
    job; the exit code is then 128 + the signal's number, as in a shell. No process of a task's
    process group is left running, even if this process itself is killed.

    Args:
      plan: takes the number of restarts so far; returns the commands, one per task, the first
        task's command first.
      console: prints the tasks' lines.
      log_dir: the directory of the `<task>.log` files, created if it does not exist; None writes
        no logs.
      max_restarts: how often tasks are restarted after one has failed.
      on_failure: called with the task that failed first, before all tasks are restarted.
      page: shows the tasks' numbers.
      find_returned: returns the names of lost hosts that have returned; called by another thread.
      min_workers: the minimum number of workers, including the chief, with which tasks continue;
        None requires all.
      places: gives the vacant places of an elastic job to workers that join it.

    Returns:
      0, or the exit code of the task that failed first (128 + N if signal N ended it).

    Raises:
      ClusterConfigError: if a program cannot be started or a log cannot be opened.
    """
    restarts, has_grown = 0, False
    while True:
        try:
            commands = plan(restarts)
        finally:
            console.begin("")  # so that an error is printed on its own line
        if restarts and not has_grown:
            console.note(f"restart {restarts} of {max_restarts}", 0)
        job = JobRunner(
            console, log_dir, restarts, max_restarts, find_returned, min_workers, places
        )
        if page is not None:
            page.show(job.metrics, functools.partial(getattr, job, "restarts"))
        job.run(commands)
        restarts, has_grown = job.restarts, job.ends_to_grow
        if has_grown and not job.interrupted:
            continue
        if job.culprit is None or job.interrupted or restarts >= max_restarts:
            return job.exit_code
        on_failure(job.culprit.task)
        restarts += 1


class JobRunner:
    """All processes of one attempt: their output, their ends and the order in which they stop.

    [Note: the end of a job]
    A job ends in this order, whatever its cause:

    1. `_stop` determines which signals the tasks get, and when. It is called by the first of these:
       a task fails, a signal arrives, the reader of the output ends, or all tasks except parameter
       servers have ended. A later cause changes `exit_code` only if it is a signal, because that is
       the user's decision.
    2. `_reap` kills the process group of each task that has ended, because processes that a task
       started, such as the workers of a data loader, must not outlive it. It does so only once,
       because the number may later belong to another process.
    3. Only when no process is left, `run` reads the rest of the output. It does not wait for more:
       a descendant with its own session may still have the terminal open.
    4. The failure of the task that failed first is explained last, below the output of all tasks.

    Step 2 happens even if an exception ends `run`; after a SIGKILL, the orphan reaper does it.

    Args:
      console: prints the tasks' lines.
      log_dir: the directory of the tasks' logs; None writes no logs.
      restarts: the number of restarts so far.
      max_restarts: the largest number of restarts.
      find_returned: see `run`.
      min_workers: see `run`.
      places: see `run`.

    Attributes:
      restarts: the number of restarts so far, with those of single tasks.
      exit_code: the exit code of the job.
      culprit: the process that failed first; None if none did.
      interrupted: whether a signal, or the end of the output's reader, ended the job.
    """

    def __init__(
        self,
        console: Console,
        log_dir: Path | None,
        restarts: int,
        max_restarts: int,
        find_returned: Callable[[], Sequence[str]] = lambda: (),
        min_workers: int | None = None,
        places: PlaceServer | None = None,
    ):
        self.restarts = restarts
        self.exit_code = 0
        self.culprit: TaskProcess | None = None
        self.interrupted = False
        self._console = console
        self._log_dir = log_dir
        self._max_restarts = max_restarts
        self._min_workers = min_workers
        self._places = places
        self._left: list[TaskProcess] = []  # the workers that have left an elastic job
        self._failed_alone: set[Task] = set()  # failed by themselves, and were restarted alone
        self._processes: list[TaskProcess] = []
        self._drained: set[TaskProcess] = set()
        self._running: list[TaskProcess] = []
        self._selector = selectors.DefaultSelector()
        # The times and signals to be sent to running tasks; not empty once the job is ending.
        self._escalation: list[tuple[float, int]] = []
        self._sent: set[int] = set()
        # The output of tasks from a traceback on, after the user has interrupted the job. It is
        # held back: the KeyboardInterrupts of ten tasks would fill the screen.
        self._last_words: dict[TaskProcess, list[Line]] = {}
        # Sidecars run in their own threads, but only one thread writes to the console.
        self._notes: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._parent = os.getppid()
        self._is_unread = False
        self._next_sample = 0.0
        self._ended = threading.Event()
        self._find_returned = find_returned
        # The lost hosts that have returned, and the time of the last checkpoint before that.
        self._returned: Sequence[str] = ()
        self._saved_before: float | None = None
        self._is_growing = False

    @property
    def ends_to_grow(self) -> bool:
        """Whether all tasks were ended to be started again with hosts that have returned."""
        # If all were done at that moment, the job is complete. Servers never end by themselves.
        return self._is_growing and any(
            process.exit_code for process in self._processes if process.task.type != "ps"
        )

    def run(self, commands: Sequence[Command]) -> None:
        """Starts the commands and returns when all have ended."""
        # The reaper starts before all tasks and ends after them, so that none is ever without it.
        with OrphanReaper() as reaper, _collect_signals() as (received, wakeup), self._selector:
            self._selector.register(wakeup, selectors.EVENT_READ, None)
            try:
                for command in commands:
                    self._processes.append(self._start(command, reaper))
                self._console.begin(describe_start(commands))
                if any(command.via for command in commands):
                    # In a thread, because a paused terminal (Ctrl-S) blocks the thread that prints.
                    call_regularly(self._beat, HEARTBEAT_SECONDS, self._ended, "heartbeat")
                call_regularly(self._look_for_hosts, GROWTH_SECONDS, self._ended, "returned hosts")
                while self._running:
                    self._pump(_TICK_SECONDS)
                    self._console.tick()
                    self._reap(reaper)
                    self._handle_signals(received)
                    self._check_reader()
                    self._watch_others()
                    self._grow()
                    self._escalate()
                    self._sample_memory()
                    self._print_notes()
            finally:
                self._console.begin("")
                self._ended.set()
                for process in self._running:
                    self._end_group(process, reaper)
                for process in self._processes:
                    self._drain(process)
                self._console.close()
        if self.culprit is not None and not self.interrupted and self.culprit not in self._left:
            self._summarize(self.culprit)
        if self.culprit is None and not self.interrupted:
            self._warn_if_unsynchronized()

    def _start(self, command: Command, reaper: OrphanReaper) -> TaskProcess:
        process = TaskProcess(command, self._log_dir, self.restarts > 0, self._notes.put)
        self._running.append(process)
        self._selector.register(process.terminal, selectors.EVENT_READ, process)
        self._console.note(f"{command.task} started{process.place}", 1)
        reaper.watch(process.popen.pid)
        return process

    def metrics(self) -> list[TaskMetrics]:
        """Returns the numbers of the tasks that run; may be called by other threads."""
        return [process.metrics() for process in list(self._running)]

    def _pump(self, timeout: float) -> None:
        for key, _ in self._selector.select(timeout):
            process = key.data
            if process is None:
                os.read(key.fd, 1 << 10)  # woken up by a signal, or by the end of a process
                continue
            data = process.read()
            if data is None:
                self._selector.unregister(process.terminal)
            self._show(process, process.lines.feed(data or b""))
            if process.lines.redrawn:
                self._console.progress(process.task, process.lines.partial)

    def _show(self, process: TaskProcess, lines: Sequence[Line]) -> None:
        for line in lines:
            process.take(line)
            last_words = self._last_words.get(process)
            if last_words is not None:
                last_words.append(line)
            elif self.interrupted and _LAST_WORDS.search(without_escapes(line.text)):
                self._last_words[process] = [line]
            else:
                self._console.line(process.task, line)

    def _reap(self, reaper: OrphanReaper) -> None:
        ended = [process for process in self._running if process.popen.poll() is not None]
        for process in ended:
            self._end_group(process, reaper)
            self._running.remove(process)
        failed = [process for process in ended if process.popen.returncode != 0]
        if self._escalation:  # the job is ending already, so these are not the cause
            return
        for process in ended:
            if self._places is not None and process not in failed:
                self._note_leaver(process)
        leaving = [process for process in failed if self._can_leave(process)]
        others = [process for process in failed if process not in leaving]
        if failed and all(map(self._can_restart_alone, others)):
            for process in leaving:
                self._leave_out(process)
            for process in others:
                self._restart_alone(process, reaper)
        elif failed:
            self.culprit = failed[0]
            self.exit_code = self.culprit.exit_code
            self._console.note(f"{self.culprit.task} failed with {self.culprit.end}")
            self._stop(signal.SIGTERM, signal.SIGKILL)
        elif self._running and not self._are_training():
            # Parameter servers do not end by themselves.
            self._stop(signal.SIGTERM, signal.SIGKILL)

    def _are_training(self) -> bool:
        """Returns whether a task runs for whose end the parameter servers wait."""
        is_joined = self._places is not None and bool(self._places.joined)
        return is_joined or any(process.task.type != "ps" for process in self._running)

    def _note_leaver(self, process: TaskProcess) -> None:
        """Makes the place of a worker vacant that has left an elastic job."""
        self._drain(process)  # the report of a task on another host comes last
        if process.has_left and self._places is not None:
            self._left.append(process)
            self._places.vacate(process.task)
            self._console.note(f"{process.task} has left the job; the others continue", 0)

    def _watch_others(self) -> None:
        """Ends an elastic job of which too few workers are left."""
        places = self._places
        if places is None:
            return
        while not places.notes.empty():
            self._console.note(places.notes.get(), 0)
        trainers = [each for each in self._processes if each.task.type in _TRAINING]
        running = [each for each in trainers if each in self._running]
        # If a worker is done with all its epochs, the others soon are, too.
        is_done = any(each not in self._running and each not in self._left for each in trainers)
        present = sum(each.task.type == "worker" for each in running) + len(places.joined)
        has_left = bool(self._left or places.departures)
        if self._escalation or is_done or not has_left or present >= places.workers.least:
            return
        self.culprit = self._left[-1] if self._left else None
        self.exit_code = 1
        self._console.note(
            f"A job must have {places.workers.least} workers or more with --workers "
            f"{places.workers}. Received: {present}, after others have left"
        )
        self._stop(signal.SIGTERM, signal.SIGKILL)

    def _can_restart_alone(self, process: TaskProcess) -> bool:
        if self.restarts >= self._max_restarts:
            return False
        # A worker that ends by itself tells the servers, which end when no worker is left.
        others = any(each.task.type != "ps" for each in self._running)
        if process.exit_code <= _SIGNALS and not others:
            return False
        self._drain(process)  # the report of a task on another host comes last
        return process.can_rejoin

    def _can_leave(self, process: TaskProcess) -> bool:
        """Returns whether a worker has failed again, and the others can continue without it."""
        if self._min_workers is None or process.task not in self._failed_alone:
            return False
        # The servers wait for a worker that was killed, because it could not tell them of its end.
        others = sum(each.task.type in _TRAINING for each in self._running)
        others += 0 if self._places is None else len(self._places.joined)
        if process.exit_code > _SIGNALS or others < self._min_workers:
            return False
        self._drain(process)
        return process.can_rejoin

    def _leave_out(self, process: TaskProcess) -> None:
        rest = "its examples are not trained on"
        if self._places is not None:
            self._left.append(process)
            self._places.vacate(process.task)
            rest = "train on its examples from the next epoch on"
        self._console.note(
            f"{process.task} failed with {process.end}{process.cause}, for the second time; the "
            f"other tasks continue without it, and {rest}",
            0,
        )

    def _restart_alone(self, process: TaskProcess, reaper: OrphanReaper) -> None:
        self.restarts += 1
        if process.exit_code <= _SIGNALS and process.task.type == "worker":
            self._failed_alone.add(process.task)
        self._console.note(
            f"{process.task} failed with {process.end}{process.cause}; restart {self.restarts} of "
            f"{self._max_restarts}: {process.task} alone, the other tasks continue",
            0,
        )
        environ = {
            **process.command.environ,
            RESTARTS_VARIABLE: str(self.restarts),
            REJOINS_VARIABLE: "1",
        }
        command = replace(process.command, environ=environ)
        self._processes[self._processes.index(process)] = self._start(command, reaper)

    def _look_for_hosts(self) -> None:
        self._returned = self._returned or self._find_returned()

    def _grow(self) -> None:
        """Ends all tasks after the first checkpoint that follows the return of a lost host."""
        if not self._returned or self._escalation:
            return
        saved = max(map(checkpoint_time, self.metrics()), default=0.0)
        if self._saved_before is None:
            self._saved_before = saved
        elif saved > self._saved_before:
            names = ", ".join(self._returned)
            self._console.note(f"{names} can be reached again, and a checkpoint is complete", 0)
            self._is_growing = True
            self._stop(signal.SIGTERM, signal.SIGKILL)

    def _beat(self) -> None:
        for process in list(self._running):
            process.beat()

    def _sample_memory(self) -> None:
        if time.monotonic() >= self._next_sample:
            self._next_sample = time.monotonic() + _SAMPLE_SECONDS
            for process in self._running:
                process.sample_memory()

    def _print_notes(self) -> None:
        while not self._notes.empty():
            self._console.note(self._notes.get())

    def _warn_if_unsynchronized(self) -> None:
        """Prints a warning about tasks that computed without joining the others."""
        alone = [process.task for process in self._processes if process.is_unsynchronized]
        if alone:
            self._console.note(describe_unsynchronized(alone))

    def _summarize(self, culprit: TaskProcess) -> None:
        log = "" if culprit.log.path is None else f", all of them in {culprit.log.path}"
        is_alone = len(self._processes) == 1  # then its last lines are right above
        last = () if is_alone else tuple(culprit.last_lines)
        lines = "its last lines" if culprit.last_lines else "it printed nothing"
        lines += " are above" if is_alone and culprit.last_lines else ""
        self._console.note(
            f"{culprit.task} failed first, with {culprit.end}{culprit.cause}; {lines}{log}"
        )
        for line in last:
            self._console.note(f"| {line}")

    def _handle_signals(self, received: list[int]) -> None:
        # If the parent is killed, such as the shell of a scheduler, it sends no signal; the job
        # would keep running, and nothing would stop it.
        if os.getppid() != self._parent and not _is_detached():
            self._parent = os.getppid()
            received.append(signal.SIGHUP)
        while received:
            number = received.pop(0)
            self.interrupted = True
            self.exit_code = 128 + number
            # Ctrl-C in a pipeline also ends the reader of the output, which may be noticed first.
            # Then the signal still counts as the user's first one.
            is_second = bool(self._escalation) and not self._is_unread
            self._is_unread = False
            if is_second:
                self._stop(signal.SIGKILL)
            elif number == signal.SIGINT:
                self._stop(signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
            else:
                self._stop(number, signal.SIGKILL)

    def _check_reader(self) -> None:
        """Ends the job if the reader of its output has ended, as in `tf-config run ... | head`."""
        if self._console.has_lost_reader and not self._escalation:
            self.interrupted = self._is_unread = True
            self.exit_code = 128 + signal.SIGPIPE
            self._stop(signal.SIGTERM, signal.SIGKILL)

    def _stop(self, *numbers: int, grace: float = GRACE_SECONDS) -> None:
        """Sends the first signal now and each further one `grace` seconds after the previous."""
        self._console.begin("")
        if self._running:
            names = ", ".join(str(process.task) for process in self._running)
            self._console.note(f"ending {names} ({signal_name(numbers[0])})", 0)
        if self._places is not None:
            restarts = self.culprit is not None and self.restarts < self._max_restarts
            self._places.end(RESTARTS if restarts and not self.interrupted else OVER)
        now = time.monotonic()
        self._escalation = [(now + n * grace, sig) for n, sig in enumerate(numbers)]
        self._escalate()

    def _escalate(self) -> None:
        # The last entry stays: a non-empty list also means that the job is ending.
        while self._escalation and self._escalation[0][0] <= time.monotonic():
            _, number = self._escalation[0]
            self._sent.add(number)
            for process in self._running:
                process.signal(number)
            if len(self._escalation) == 1:
                self._escalation = [(float("inf"), number)]
                break
            self._escalation.pop(0)

    def _end_group(self, process: TaskProcess, reaper: OrphanReaper) -> None:
        process.kill()
        reaper.forget(process.popen.pid)

    def _drain(self, process: TaskProcess) -> None:
        """Shows the output that the process wrote before it ended, and closes its terminal."""
        if process in self._drained:
            return
        self._drained.add(process)
        os.set_blocking(process.terminal, False)
        while (data := process.read()) is not None:
            self._show(process, process.lines.feed(data))
        self._show(process, process.lines.close())
        last_words = self._last_words.pop(process, [])
        if process.exit_code - 128 not in self._sent:  # it did not end by a signal of the launcher
            for line in last_words:
                self._console.line(process.task, line)
        if process.terminal in self._selector.get_map():
            self._selector.unregister(process.terminal)
        process.close()


def describe_start(commands: Sequence[Command]) -> str:
    """Returns a message about the start of these commands.

    >>> describe_start([Command(Task("worker", index), ("sh",), {}) for index in range(2)])
    'starting worker 0, worker 1 on this machine'
    """
    hosts = ["this machine" if command.host is None else command.host.name for command in commands]
    tasks = [str(command.task) for command in commands]
    if len(tasks) > _MOST_NAMES:
        counts = collections.Counter(command.task.type for command in commands)
        tasks = [f"{count} {job}" for job, count in counts.items()]
    text = f"starting {', '.join(tasks)} on {', '.join(dict.fromkeys(hosts))}"
    is_python = any(command.argv[0] == sys.executable for command in commands)
    return f"{text} (importing TensorFlow takes some seconds)" if is_python else text


@contextlib.contextmanager
def _collect_signals() -> Iterator[tuple[list[int], int]]:
    """Collects SIGINT, SIGTERM and SIGHUP, which would otherwise end this process.

    Yields:
      The list of signals received, and a descriptor that becomes readable after any of them and
      after the end of a process, so that the first one to end is known even if others follow.
    """
    received: list[int] = []
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # nohup
        numbers.remove(signal.SIGHUP)
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    handlers = {
        **dict.fromkeys(numbers, lambda number, _: received.append(number)),
        signal.SIGCHLD: lambda *_: None,  # without a handler, it would not wake up the descriptor
    }
    with handle_signals(handlers):
        before = signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
        try:
            yield received, readable
        finally:
            signal.set_wakeup_fd(before)
            os.close(readable)
            os.close(writable)


def _is_detached() -> bool:
    """Returns whether the user detached this process from its parent by nohup or setsid."""
    return signal.getsignal(signal.SIGHUP) == signal.SIG_IGN or os.getsid(0) == os.getpid()
