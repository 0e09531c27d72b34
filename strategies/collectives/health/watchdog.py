"""Reports which worker waits for which, and ends a job whose workers are in different operations.

Each worker tells a store, which the first one serves, what it is in. A wait may be long for a good
reason: a function is traced, a first worker validates or saves by itself. So a worker that waits
says whom it waits for, again and again; it ends the job only where nothing can end the wait: the
other one has ended, or waits as long in another operation.
"""

from __future__ import annotations

import atexit
import dataclasses
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import tensorflow as tf
from absl import logging

from strategies._keras import running_call
from strategies.collectives.base import Collectives
from strategies.collectives.health.operations import OperationTracker, WatchedCollectives
from strategies.collectives.startup.rendezvous import Store, serve
from tf_config import Address, ClusterSpec, Task
from tf_config.secret import secret_of
from tf_config.store import StoreHandler, StoreServer

WATCH_VARIABLE = "KERAS_STRATEGIES_WATCH_SECONDS"
WATCH_SECONDS = 30.0
_PAUSE_SECONDS = 1.0
_PUBLISH_SECONDS = 2.0
_ENDED_SECONDS = 3.0
_LEAVING_SECONDS = 12.0
_SCOPE = "keras_strategies_operations"
_NAMED = 3  # workers in a message
_NOT_THE_USERS = (
    str(Path(__file__).parents[2]),  # this package
    os.path.dirname(os.__file__),  # Python's own, with site-packages inside
    "<",
)

# What this process watches: it has one job, strategies may be many.
_watched: dict[int, WatchedCollectives] = {}
_watchdog: Watchdog | None = None


@dataclasses.dataclass(frozen=True)
class State:
    """What a worker is doing, as it tells the others.

    Attributes:
      kind: of the collective operation that it waits in: "eager", "function", "" for none.
      operation: which one.
      waited: for how many seconds.
      place: the line of the user's program, and the call.
      ended: whether it has ended.
    """

    kind: str = ""
    operation: str = ""
    waited: float = 0.0
    place: str = ""
    ended: bool = False

    def may_match(self, other: State) -> bool:
        """Returns whether two workers may wait in the same operation."""
        return bool(self.kind) and (self.kind, self.operation) == (other.kind, other.operation)

    def describe(self, seconds: float) -> str:
        """Returns a description of what the worker does."""
        if self.ended:
            return "has ended"
        doing = "waits" if self.waited >= seconds else "is"
        return f"{doing} in {self.place}" if self.place else doing


def is_deadlocked(mine: State, theirs: State, seconds: float) -> bool:
    """Returns whether two workers wait for each other forever.

    A wait inside of a function may be a step that still computes, on both: that is no proof.

    >>> step, save = State("function", "", 40), State("eager", "all_gather number 7", 40)
    >>> [is_deadlocked(step, theirs, 30) for theirs in (save, step, State())]
    [True, False, False]
    >>> is_deadlocked(step, State(ended=True), 30)
    True
    """
    if theirs.ended:
        return mine.waited >= _ENDED_SECONDS
    if min(mine.waited, theirs.waited) < seconds or "eager" not in (mine.kind, theirs.kind):
        return False
    return not mine.may_match(theirs)


def watch(
    collectives: Collectives, cluster: ClusterSpec, task: Task, seconds: float
) -> WatchedCollectives:
    """Starts to watch the waits of collectives; returns those to use, the same ones each time.

    Args:
      collectives: among the workers of `cluster`, which all call this.
      cluster: the workers; their order is the rank.
      task: this one.
      seconds: how long a wait may be before it is told of.
    """
    global _watchdog
    if _watchdog is None:
        operations = OperationTracker()
        store = _shared_store(collectives, cluster, task)
        _watchdog = Watchdog(store, cluster.training_tasks, task, operations, seconds)
        _watchdog.start()
        # Before what Horovod and TensorFlow do at the end, which would end the others' waits.
        atexit.register(_watchdog.leave)
    if id(collectives) not in _watched:
        _watched[id(collectives)] = WatchedCollectives(collectives, _watchdog.operations)
    return _watched[id(collectives)]


def watch_seconds(environ: Mapping[str, str] = os.environ) -> float:
    """Returns the number of seconds after which a wait is reported.

    >>> watch_seconds({"KERAS_STRATEGIES_WATCH_SECONDS": "5"})
    5.0

    Raises:
      ValueError: if the environment says no such time.
    """
    given = environ.get(WATCH_VARIABLE, WATCH_SECONDS)
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError(
            f"{WATCH_VARIABLE} is a number of seconds above 0. Received: {given!r}. Correct it, "
            f"or leave it out for {WATCH_SECONDS:g}."
        )
    return seconds


class Watchdog:
    """A thread that publishes what this worker does, and checks its peers while it waits.

    Args:
      store: of all workers' states.
      tasks: the workers, by rank.
      task: this one.
      operations: what this worker is in.
      seconds: how long a wait may be before it is told of.
      end: ends the process, with a message.
    """

    def __init__(
        self,
        store: Store,
        tasks: Sequence[Task],
        task: Task,
        operations: OperationTracker,
        seconds: float,
        end: Callable[[str], None] | None = None,
    ):
        self.operations = operations
        self._store = store
        self._task = task
        self._others = [other for other in tasks if other != task]
        self._seconds = seconds
        self._end = end or _end_process
        # The more workers, the less often: the first one answers all of them.
        self._publish_seconds = max(_PUBLISH_SECONDS, len(tasks) / 10)
        self._main = threading.main_thread().ident or 0
        self._stopped = threading.Event()
        self._warned = 0.0
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def leave(self) -> None:
        """Announces that this worker has ended, and waits until the others have seen it.

        Returns at once where all others have ended, or this one ends with an error.
        """
        self._stopped.set()
        self._thread.join()
        self._publish(State(ended=True))
        if hasattr(sys, "last_value"):
            return
        missing, end = list(self._others), time.monotonic() + _LEAVING_SECONDS
        while missing and time.monotonic() < end:
            state = self._state_of(missing[0])
            if state is None or state.ended:
                missing.pop(0)
            else:
                time.sleep(0.1)

    def check_peers(self, mine: State) -> None:
        """Checks the other workers while this one waits; logs a warning, or ends the process."""
        states = {other: self._state_of(other) for other in self._others}
        known = {other: state for other, state in states.items() if state is not None}
        lost = [
            other for other, state in known.items() if is_deadlocked(mine, state, self._seconds)
        ]
        if lost:
            self._end(self._report(mine, {other: known[other] for other in lost}))
        elif mine.waited >= self._seconds and mine.waited - self._warned >= self._seconds:
            self._warned = mine.waited
            late = {
                o: s
                for o, s in known.items()
                if (s.kind, s.operation) != (mine.kind, mine.operation)
            }
            logging.warning("%s", self._report(mine, late or known))

    def _report(self, mine: State, others: Mapping[Task, State]) -> str:
        named = [f"{o} {s.describe(self._seconds)}" for o, s in list(others.items())[:_NAMED]]
        more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        return (
            f"{self._task} has waited {mine.waited:.0f} s in {mine.place}, for the other workers: "
            f"{', '.join(named)}{more}. All workers call it, with as many steps."
        )

    def _watch(self) -> None:
        published = 0.0
        while not self._stopped.wait(_PAUSE_SECONDS):
            kind, operation, waited = self.operations.waiting()
            if not waited:
                self._warned = 0.0
            if time.monotonic() - published < self._publish_seconds:
                continue
            published = time.monotonic()
            mine = State(kind, operation, waited, _place(self._main))
            self._publish(mine)
            if waited >= _ENDED_SECONDS:
                self.check_peers(mine)

    def _publish(self, state: State) -> None:
        self._store.put(self._task, json.dumps(dataclasses.asdict(state)).encode())

    def _state_of(self, task: Task) -> State | None:
        entry = self._store.get(task)
        try:
            return None if entry is None else State(**json.loads(entry))
        except (TypeError, ValueError, RecursionError):  # no worker of this version wrote that
            return None


def _end_process(message: str) -> None:
    # The main thread is inside of an operation that Python cannot interrupt.
    logging.error("%s", message)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def _place(thread: int) -> str:
    """Returns the line of the user's program that a thread is in, and the running call of Keras."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001  # a public function, in its way
    call = running_call(frame) if frame is not None else ""
    own = [
        entry
        for entry in traceback.extract_stack(frame)
        if not entry.filename.startswith(_NOT_THE_USERS) and "-packages" not in entry.filename
    ]
    line = f"{os.path.basename(own[-1].filename)}, line {own[-1].lineno}" if own else ""
    if own and own[-1].line:
        line = f"{line} ({own[-1].line[:80]})"
    return ", ".join(filter(None, [call, line]))


def _shared_store(collectives: Collectives, cluster: ClusterSpec, task: Task) -> Store:
    """Returns the store that the first worker serves, on a free port."""
    first = cluster.training_tasks[0]
    host = cluster.addresses[first].host
    port = 0
    if task == first:
        server = serve(StoreServer, Address(host, 0), task, StoreHandler, secret_of())
        port = server.server_address[1]  # type: ignore[index,assignment]
    port = int(collectives.broadcast(tf.constant(port)))
    return Store(Address(host, port), _SCOPE)
