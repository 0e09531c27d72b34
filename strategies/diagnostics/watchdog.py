"""Reports which workers wait for which, and ends a job whose workers wait for each other forever.

Each worker writes its state to a store that the first worker serves. A long wait may be legitimate:
a function is being traced, or the first worker validates or saves by itself. So a waiting worker
repeatedly logs which workers it waits for. It ends the job only if the wait cannot end, because the
other worker has ended, waits just as long in another operation, or is on a host that does not
answer; or if the wait exceeds the limit that the user has set. It writes the reason to the store;
the other workers read it there and exit with the same message.
"""

from __future__ import annotations

import atexit
import dataclasses
import linecache
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import tensorflow as tf
from absl import logging

from strategies.collectives.base import Collectives
from strategies.collectives.startup.rendezvous import serve
from strategies.diagnostics.calls import call_in
from strategies.diagnostics.flight_recorder import FlightRecorder
from strategies.diagnostics.metrics import add_source, are_reported
from strategies.diagnostics.operations import OperationTracker, WatchedCollectives
from strategies.diagnostics.peers import SILENT_SECONDS, Peers, State
from strategies.diagnostics.signal_request import SignalRequest
from strategies.diagnostics.stack import Entry, stack_of
from strategies.diagnostics.waits import (
    WaitReport,
    end_epoch,
    read_exchanges,
    samples_of,
    watch_waits,
)
from strategies.utils.background_thread import BackgroundThread, is_ending_by_error
from tf_config import Address, ClusterSpec, Task
from tf_config.launcher.progress_file import Sample
from tf_config.launcher.settings import STEP_TIMEOUT_VARIABLE
from tf_config.reachability import connect
from tf_config.rendezvous.http_store import HttpStore, StoreServer
from tf_config.rendezvous.store import Store
from tf_config.secret import secret_of

WATCH_VARIABLE = "KERAS_STRATEGIES_WATCH_SECONDS"
WATCH_SECONDS = 30.0
_PAUSE_SECONDS = 1.0
_PUBLISH_SECONDS = 2.0
_ENDED_SECONDS = 3.0
_LEAVING_SECONDS = 12.0
# After this time, workers no longer wait for a host that does not answer.
LOST_SECONDS = 60.0
_CONNECT_SECONDS = 5.0
# How long a worker that ends the job waits before it exits, so that the others can read the reason.
_LINGER_SECONDS = 4.0
_VERDICT, _EXCHANGES, _WAITS = "verdict", "exchanges-{}", "waits"
_SCOPE = "keras_strategies_operations"
_NAMED = 3  # the number of workers named in a message
_NOT_THE_USERS = (
    str(Path(__file__).parents[1]),  # this package
    os.path.dirname(os.__file__),  # Python's library, including site-packages
    "<",
)

# The watched collectives of this process: it has one job, but may have many strategies.
_watched: dict[int, WatchedCollectives] = {}
_watchdog: Watchdog | None = None


def is_deadlocked(mine: State, theirs: State, seconds: float) -> bool:
    """Returns whether two workers wait for each other forever.

    Waits inside functions on both workers prove nothing: their steps may still be computing.

    >>> step, save = State("function", "", 40), State("eager", "all_gather number 7", 40)
    >>> [is_deadlocked(step, theirs, 30) for theirs in (save, step, State())]
    [True, False, False]
    >>> is_deadlocked(step, State(ended=True), 30)
    True

    An ended worker that had begun the same operation has sent its part, which may still arrive.

    >>> third = State("eager", "all_reduce number 3", 40, pending=[(0, 3)])
    >>> [is_deadlocked(third, State(ended=True, begun=[number]), 30) for number in (2, 3)]
    [True, False]
    """
    if theirs.ended:
        limit = LOST_SECONDS if mine.was_joined_by(theirs) else _ENDED_SECONDS
        return mine.waited >= limit
    if min(mine.waited, theirs.waited) < seconds or "eager" not in (mine.kind, theirs.kind):
        return False
    return not mine.may_match(theirs)


def watch(
    collectives: Collectives, cluster: ClusterSpec, task: Task, seconds: float
) -> WatchedCollectives:
    """Starts watching collectives; returns the watched ones, the same object for each call.

    Args:
      collectives: the collectives among the workers of `cluster`, which all call this function.
      cluster: the workers, in the order of their ranks.
      task: the task of this process.
      seconds: the number of seconds after which a wait is reported.
    """
    global _watchdog
    if _watchdog is None:
        store = _shared_store(collectives, cluster, task)
        _watchdog = Watchdog(
            store, cluster, task, OperationTracker(), seconds, step_timeout=step_timeout_seconds()
        )
        _watchdog.start()
        # Runs before the exit handlers of Horovod and TensorFlow, which make the operations fail
        # that the others wait in.
        atexit.register(_watchdog.leave)
    if id(collectives) not in _watched:
        _watched[id(collectives)] = WatchedCollectives(collectives, _watchdog.operations)
    return _watched[id(collectives)]


def watch_seconds(environ: Mapping[str, str] = os.environ) -> float:
    """Returns the number of seconds after which a wait is reported.

    >>> watch_seconds({"KERAS_STRATEGIES_WATCH_SECONDS": "5"})
    5.0

    Raises:
      ValueError: if the environment variable is not a number of seconds above 0.
    """
    return _seconds(environ, WATCH_VARIABLE, WATCH_SECONDS, f"{WATCH_SECONDS:g}")


def step_timeout_seconds(environ: Mapping[str, str] = os.environ) -> float:
    """Returns the number of seconds after which a wait ends the job; infinity if there is no limit.

    >>> step_timeout_seconds({"KERAS_STRATEGIES_STEP_TIMEOUT": "600"}), step_timeout_seconds({})
    (600.0, inf)

    Raises:
      ValueError: if the environment variable is not a number of seconds above 0.
    """
    return _seconds(environ, STEP_TIMEOUT_VARIABLE, float("inf"), "no limit")


def _seconds(environ: Mapping[str, str], variable: str, default: float, in_words: str) -> float:
    if variable not in environ:
        return default
    value = environ[variable]
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError(
            f"{variable} must be a number of seconds above 0. Received: {value!r}. Correct it, or "
            f"unset it for the default ({in_words})."
        )
    return seconds


class Watchdog:
    """A thread that publishes this worker's state, and checks its peers while it waits.

    Args:
      entries: the entries of all workers' states.
      cluster: the workers, in the order of their ranks.
      task: the task of this process.
      operations: the tracker of this worker's operations.
      seconds: the number of seconds after which a wait is reported.
      end: ends the process with a message; None logs it, writes the last operations, and exits.
      step_timeout: the number of seconds after which a wait ends the job.
      needs_all: whether workers cannot continue without one that has ended.
      keeper: the task that serves the entries; None is the first worker.
    """

    def __init__(
        self,
        entries: Store,
        cluster: ClusterSpec,
        task: Task,
        operations: OperationTracker,
        seconds: float,
        end: Callable[[str], None] | None = None,
        step_timeout: float = float("inf"),
        needs_all: bool = True,
        keeper: Task | None = None,
    ):
        self.operations = operations
        self._entries = entries
        self._cluster = cluster
        self._task = task
        tasks = cluster.training_tasks
        self._peers = Peers(entries, [other for other in tasks if other != task])
        # The first worker compares the exchanges of all.
        self._wait_report = WaitReport(tasks) if task == tasks[0] else None
        self._waits: list[Sample] = []
        self._seconds = seconds
        self._step_timeout = step_timeout
        self._needs_all = needs_all
        self._keeper = keeper or tasks[0]
        self._end = end or self._end_process
        # Less often with more workers: the first worker answers all of them.
        self._publish_seconds = max(_PUBLISH_SECONDS, len(tasks) / 10)
        self._main = threading.main_thread().ident or 0
        self._recorder = FlightRecorder(task, operations, self._place)
        self._request = SignalRequest(signal.SIGUSR1)
        self._warned = 0.0
        self._beat = 0
        self._thread = BackgroundThread(self._watch, "watchdog")
        self._process = os.getpid()

    def start(self) -> None:
        """Starts the thread, and writes the last operations on SIGUSR1 from now on."""
        self._request.start()
        if self._wait_report is not None:
            watch_waits(self._wait_report)
        add_source(self, Watchdog.samples)
        self._thread.start()

    def samples(self) -> list[Sample]:
        """Returns for how long this worker has waited for each other one."""
        return self._waits

    def leave(self) -> None:
        """Announces that this worker has ended, and waits briefly for the others to end, too.

        Returns at once if all others have ended, if workers can continue without it, if this worker
        ends with an error, or in a forked child of this process, which is not a worker.
        """
        if os.getpid() != self._process:
            return
        # First, because the thread would overwrite the entry below.
        self._thread.stop(_LEAVING_SECONDS)
        self._request.stop()
        end_epoch()
        is_reached = self._publish(State(ended=True, begun=self.operations.begun()))
        if is_ending_by_error():
            self._explain(is_reached)
            return
        if not self._needs_all:
            return
        # The first worker serves the entries, and the exit handlers that run next make the others'
        # operations fail with obscure errors. So the others get time to read that it has ended.
        missing, end = list(self._peers.others), time.monotonic() + _LEAVING_SECONDS
        while missing and time.monotonic() < end:
            state = self._peers.state_of(missing[0])
            if state is None or state.ended:
                missing.pop(0)
            else:
                time.sleep(0.1)

    def check_peers(self, mine: State, is_reached: bool = True) -> None:
        """Checks the other workers while this one waits; logs a warning or ends the job."""
        states = self._peers.look(is_reached)
        lost = {other: state for other, state in states.items() if self._is_lost(mine, state)}
        # If all of them seem to be in this operation, it is unknown which one is late.
        late = {o: s for o, s in states.items() if not mine.may_match(s)} or states
        waits = self._report(mine, late) if is_reached else self._report_unreached(mine)
        cut_off = self._cut_off(states, LOST_SECONDS)
        # From the most certain reason to the least: all workers print the first one that applies.
        if lost:
            self._end_all(self._report(mine, lost))
        elif cut_off:
            self._end_all(self._report(mine, cut_off, ", on a host that does not answer"))
        elif mine.waited >= self._step_timeout:
            self._end_all(
                f"A worker cannot wait longer than {self._step_timeout:g} s for the others in a "
                f"step (--step-timeout). Received: {waits} Raise the limit if one of them "
                "computes, validates or saves for longer on its own."
            )
        elif mine.waited >= self._seconds and mine.waited - self._warned >= self._seconds:
            self._warned = mine.waited
            logging.warning("%s", waits)

    def check_verdict(self) -> None:
        """Ends this process if another worker has ended the job."""
        verdict = self._entries.get(_VERDICT)
        if verdict is not None:
            self._end(verdict.decode(errors="replace"))

    def _is_lost(self, mine: State, theirs: State) -> bool:
        if theirs.ended and not self._needs_all:
            return False
        return is_deadlocked(mine, theirs, self._seconds)

    def _explain(self, is_reached: bool) -> None:
        """Logs which workers are on hosts that do not answer, which makes operations fail."""
        cut_off = self._cut_off(self._peers.look(is_reached), SILENT_SECONDS)
        if cut_off:
            names = ", ".join(self._describe(*each) for each in cut_off.items())
            logging.error("%s ends: %s, on a host that does not answer.", self._task, names)

    def _cut_off(self, states: Mapping[Task, State], seconds: float) -> dict[Task, State]:
        """Returns the workers silent for at least `seconds`, on hosts that do not answer."""
        # Silence alone proves nothing: a process that holds Python's global lock for long, or is
        # paused, does not report either. But its host answers, even if nothing listens on the port.
        silent = {task: state for task, state in states.items() if state.silent >= seconds}
        addresses = self._cluster.addresses
        reached = connect([addresses[task] for task in silent], _CONNECT_SECONDS)
        return {
            task: state
            for task, state in silent.items()
            if not state.ended and reached[addresses[task]].state == "unreachable"
        }

    def _end_all(self, message: str) -> None:
        """Ends the job: this process, and all others, which read the message in the store."""
        self._entries.put(_VERDICT, f"{self._task} ended the job: {message}".encode())
        self._end(message)

    def _report(self, mine: State, others: Mapping[Task, State], more: str = "") -> str:
        named = [self._describe(other, state) for other, state in list(others.items())[:_NAMED]]
        rest = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        return (
            f"{self._describe_wait(mine)}, for the other workers: {', '.join(named)}{rest}{more}. "
            "All workers must call it, with the same number of steps."
        )

    def _report_unreached(self, mine: State) -> str:
        # The other workers may be waiting for the task that serves the entries, too.
        address = self._cluster.addresses[self._keeper]
        return (
            f"{self._describe_wait(mine)}, for the other workers. What they do is unknown, "
            f"because {self._keeper} ({address}), to which all workers report, does not answer."
        )

    def _describe_wait(self, mine: State) -> str:
        doing = f"{mine.operation}, in {mine.place}" if mine.place else mine.operation
        return f"{self._task} has waited {mine.waited:.0f} s in {doing}"

    def _describe(self, task: Task, state: State) -> str:
        at = f" ({self._cluster.addresses[task]})" if state.is_silent and not state.ended else ""
        return f"{task}{at} {state.describe(self._seconds)}"

    def _watch(self, stopped: threading.Event) -> None:
        published = 0.0
        while not stopped.wait(_PAUSE_SECONDS):
            if self._request.is_pending():
                self._recorder.write("SIGUSR1")
            kind, operation, waited = self.operations.waiting()
            if not waited:
                self._warned = 0.0
            if time.monotonic() - published < self._publish_seconds:
                continue
            published = time.monotonic()
            pending = self.operations.pending()
            mine = State(kind, operation, waited, self._place(), pending=pending)
            is_reached = self._publish(mine)
            if is_reached:
                self.check_verdict()
                self._report_exchanges()
            # If the operation has ended in the meantime, this worker no longer waits.
            if waited >= _ENDED_SECONDS and pending:
                self.check_peers(mine, is_reached)

    def _report_exchanges(self) -> None:
        """Publishes this worker's latest exchanges; on the first worker, compares those of all."""
        own = self.operations.exchanges()
        if self._wait_report is None:
            self._entries.put(_EXCHANGES.format(self._task.label), own.tobytes())
        else:
            tables = [own]
            for other in self._peers.others:
                table = read_exchanges(self._entries.get(_EXCHANGES.format(other.label)))
                if table is None:
                    break
                tables.append(table)
            else:
                self._wait_report.add(tables)
        if are_reported():
            if self._wait_report is not None:
                self._entries.put(_WAITS, self._wait_report.to_json())
            self._waits = samples_of(self._task, self._entries.get(_WAITS))

    def _place(self) -> str:
        return place_in(stack_of(self._main))

    def _end_process(self, message: str) -> None:
        # An exception would not do: the main thread is in an operation that Python cannot
        # interrupt.
        logging.error("%s", message)
        self._recorder.write(message)
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(_LINGER_SECONDS)
        os._exit(1)

    def _publish(self, state: State) -> bool:
        self._beat += 1
        entry = dataclasses.replace(state, beat=self._beat).to_bytes()
        is_reached = self._entries.put(self._task, entry)
        if is_reached:
            self._peers.note_reached()
        return is_reached


def place_in(stack: Sequence[Entry]) -> str:
    """Returns the running Keras call and the line of the user's program that a thread is in."""
    call, _ = call_in(stack)
    innermost = next(filter(_is_the_users, stack), None)
    if innermost is None:
        return call
    line = f"{os.path.basename(innermost.filename)}, line {innermost.line}"
    source = linecache.getline(innermost.filename, innermost.line).strip()
    return ", ".join(filter(None, [call, f"{line} ({source[:80]})" if source else line]))


def _is_the_users(entry: Entry) -> bool:
    return not entry.filename.startswith(_NOT_THE_USERS) and "-packages" not in entry.filename


def _shared_store(collectives: Collectives, cluster: ClusterSpec, task: Task) -> HttpStore:
    """Returns the store that the first worker serves, on a free port."""
    first = cluster.training_tasks[0]
    host = cluster.addresses[first].host
    port = 0
    if task == first:
        server = serve(StoreServer, Address(host, 0), task, secret_of())
        port = server.server_address[1]  # type: ignore[index,assignment]
    port = int(collectives.broadcast(tf.constant(port)))
    return HttpStore(Address(host, port), _SCOPE)
