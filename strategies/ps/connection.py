"""A worker's connections to the parameter servers.

The servers are TensorFlow servers. A worker has a session with each of them: it adds operations to
the session's graph, and all of them run on the server. A call takes one message in each direction,
however many operations it runs; calls from several threads run concurrently.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf
from absl import logging

from strategies.collectives.startup.waiting import wait_until
from strategies.compat.tensorflow import FunctionCallOptions, Session, context
from strategies.diagnostics.operations import OperationTracker
from strategies.diagnostics.watchdog import LOST_SECONDS, step_timeout_seconds
from strategies.ps.function_key import function_key
from strategies.ps.lock import INCOMPLETE_CHANGE, Lock
from strategies.ps.manifest import Registration
from strategies.ps.restarts import ServerRestarts
from strategies.utils.devices import HOST
from tf_config import Address, ClusterSpec, Task
from tf_config.launcher.reports import EXCHANGED, report
from tf_config.reachability import connect

_ANSWER_SECONDS = 2.0
_CLOSE_SECONDS = 60.0
_LOST_ANSWER_SECONDS = 0.1
_CHECK_EVERY_SECONDS = 1.0
_LOG_EVERY_SECONDS = 10.0
_V1 = tf.compat.v1
# Parts of the error messages for a call, or for additions to a graph, that TensorFlow sent again
# after the connection had broken. There are no error codes for these.
_RECEIVED_TWICE = "request was received twice"
_EXTENDED_TWICE = "but caller expected"
# The errors of operations on variables without a value.
_HAS_NO_VALUE = (tf.errors.FailedPreconditionError, tf.errors.NotFoundError)
_T = TypeVar("_T")


class ServerUnavailableError(RuntimeError):
    """Raised when a parameter server no longer answers, or its values are damaged."""


class ResponseLostError(ServerUnavailableError):
    """Raised when a parameter server received a call, but its response was lost."""


class _ServerGoneError(RuntimeError):
    """Raised when a call finds that a server is gone, or that another process has its address.

    Attributes:
      reason: why the server is believed to be gone.
      may_return: whether a server that is restarted may take its place; one that hangs is not.
    """

    def __init__(self, reason: str, may_return: bool = True):
        super().__init__(reason)
        self.reason = reason
        self.may_return = may_return


class _GraphDiffersError(RuntimeError):
    """Raised when a server has additions to a session's graph that the session does not know of.

    This happens if the response to the call that made them was lost.
    """


class ServerConnection:
    """A worker's connection to one parameter server.

    Args:
      number: the index of the server's task.
      address: the address that the server listens on.
      is_optimized: whether TensorFlow optimizes the graphs that run on the server.
    """

    def __init__(self, number: int, address: Address, is_optimized: bool = True):
        self.number = number
        self.address = address
        self.graph = tf.Graph()
        config = _V1.ConfigProto()
        config.graph_options.rewrite_options.disable_meta_optimizer = not is_optimized
        self._config = config
        self._session = self._new_session()
        # Those with a server that was restarted since.
        self._former_sessions: list[Session] = []
        # Function calls have their own configuration.
        self._options = None if is_optimized else FunctionCallOptions(config_proto=config)
        self._lock = threading.RLock()
        self._built: dict[Any, Any] = {}
        self._connections: list[ServerConnection] = []
        self._restarts: ServerRestarts | None = None
        # The number of restarts that the session takes account of.
        self._restarts_seen = 0
        self._registration: Registration | None = None
        with self.building():
            # Held during every update of this server's variables.
            self.lock = Lock("changes")
            self._nothing = tf.no_op()
        self._step_timeout = step_timeout_seconds()
        self._is_lost = False

    def _new_session(self) -> Session:
        return Session(f"grpc://{self.address}", graph=self.graph, config=self._config)

    def expect_restarts(self, restarts: ServerRestarts) -> None:
        """Makes calls wait for the server if it is lost, because it will be restarted.

        See [Note: a server that is restarted in place] in ps/restarts.py.

        Args:
          restarts: waits for the server.
        """
        self._restarts = restarts
        with self.building():
            self._registration = Registration(self.graph)

    @property
    def restarts(self) -> ServerRestarts | None:
        """What waits for the server if it is restarted; None if a lost server is an error."""
        return self._restarts

    @property
    def is_lost(self) -> bool:
        """Whether a call found the server gone, or silent for too long."""
        return self._is_lost or any(each.is_lost for each in self._connections)

    def notice_restart(self) -> None:
        """Notices a restart since the last call, and waits for the server if it is lost now."""
        if self._restarts is not None and not self.is_lost:
            self._call(self._nothing, idempotent=True)

    def is_there(self) -> bool:
        """Returns whether the server may be there: no call found it lost, and its host answers so.

        A host that does not answer, where messages are lost, may answer the next time. A server
        that is suspended still accepts connections, but does not answer.
        """
        return not self.is_lost and address_state(self.address) != "closed"

    def new_connection(self) -> ServerConnection:
        """Opens another connection, for large graphs with many functions.

        TensorFlow sends and copies all functions of a graph whenever new operations in it run, and
        more often if the graph is optimized. With a graph per connection, additions to one do not
        slow down the others.
        """
        connection = ServerConnection(self.number, self.address, is_optimized=False)
        if self._restarts is not None:
            connection.expect_restarts(self._restarts)
        self._connections.append(connection)
        return connection

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Makes the block add its operations to this server's graph."""
        with (
            self._lock,
            self.graph.as_default(),
            tf.device(HOST),
            _function_call_options(self._options),
        ):
            yield
            if self._registration is not None:
                self._registration.search()

    def build_once(self, build: Callable[[], _T], state: Iterable[Hashable] = ()) -> _T:
        """Returns the result of `build`, which adds to the graph; later calls return the same.

        The cache key is derived from the function; see `function_key`. A key written by hand would
        sooner or later lack one of the values that the graph depends on, and a call would silently
        run the graph of another one.

        Args:
          build: adds to the graph.
          state: the parts of the captured objects' state that may change and affect the graph.
        """
        key = function_key(build), *state
        with self._lock:
            if key not in self._built:
                with self.building():
                    self._built[key] = build()
            return self._built[key]

    def run(
        self,
        fetches: Any,
        feeds: dict[Any, Any] | None = None,
        poll: Any = None,
        idempotent: bool = False,
        survives_restarts: bool = True,
    ) -> Any:
        """Runs operations on the server and returns their results as NumPy arrays.

        Logs every ten seconds that it is waiting, as long as the server is reachable. If a lost
        server will be restarted, waits for it and repeats the call.

        Args:
          fetches: the operations and tensors to run.
          feeds: arrays for the placeholders.
          poll: an idempotent operation to run every second while this call waits.
          idempotent: whether the call may be repeated if the response is lost.
          survives_restarts: whether the call may be repeated if the server is restarted. See
            [Note: a server that is restarted in place] in ps/restarts.py.

        Raises:
          ResponseLostError: if the connection broke before the response arrived, but the server is
            still there. See [Note: exactly-once updates] in ps/sequence_number.py.
          ServerUnavailableError: if the server is gone, or its values are damaged.
        """
        if not survives_restarts:
            # Otherwise, a loss since the last call would be taken for one during this call.
            self.notice_restart()
        return self._call(fetches, feeds, poll, idempotent, survives_restarts)

    def _call(
        self,
        fetches: Any,
        feeds: dict[Any, Any] | None = None,
        poll: Any = None,
        idempotent: bool = False,
        survives_restarts: bool = True,
        is_registration: bool = False,
    ) -> Any:
        """Runs operations; see `run`."""
        while True:
            restarts = self._renew_session()
            if not is_registration and not self._is_registered(restarts):
                self._register()
                continue
            session = self._session
            try:
                return self._run(fetches, feeds, poll)
            except _GraphDiffersError:
                # The server refused the call before it ran anything, so even a call that is not
                # idempotent can be repeated. A new session sends the whole graph. If several
                # threads come here, the first one replaces the session.
                with self._lock:
                    if self._session is session:
                        self._session = self._new_session()
            except ResponseLostError:
                if not idempotent:
                    raise
            except _ServerGoneError as gone:
                awaited = self._restarts if gone.may_return and survives_restarts else None
                if awaited is None or not awaited.wait(restarts, gone.reason):
                    raise self._mark_lost(gone.reason) from None

    def _renew_session(self) -> int:
        """Opens a new session if the server was restarted; returns the number of restarts."""
        if self._restarts is None:
            return 0
        # If another thread waits for the server, this one waits as well.
        with self._restarts.lock:
            count = self._restarts.count
        if self._restarts_seen < count:
            with self._lock:
                if self._restarts_seen < count:
                    self._former_sessions.append(self._session)
                    self._session, self._restarts_seen = self._new_session(), count
        return count

    def _is_registered(self, restarts: int) -> bool:
        return self._registration is None or self._registration.is_complete(restarts)

    def _register(self) -> None:
        """Tells the server of the variables and tables in the graph that it does not know yet."""
        restarts, registration = self._restarts, self._registration
        if restarts is None or registration is None:
            return

        def insert(feeds: dict[tf.Tensor, np.ndarray]) -> None:
            self._call(registration.insert, feeds, idempotent=True, is_registration=True)

        with restarts.lock:
            registration.send(insert, restarts.count)

    def _run(self, fetches: Any, feeds: dict[Any, Any] | None, poll: Any) -> Any:
        """Makes a call once, and waits for its response as long as the server is there."""
        response = self._start_call(fetches, feeds)
        start = logged = answered = time.monotonic()
        while True:
            with contextlib.suppress(queue.Empty):
                _, result, error = response.get(timeout=_CHECK_EVERY_SECONDS)
                break
            now = time.monotonic()
            if now - logged >= _LOG_EVERY_SECONDS:
                logged = now
                logging.warning(
                    "Waiting for ps %d (%s), or for another worker there: %.0f s.",
                    self.number, self.address, now - start,
                )  # fmt: skip
            answered = self._last_answer(start, answered)
            if poll is not None:
                self._call(poll, idempotent=True, survives_restarts=False)
        # The order matters: a call that was received twice is also aborted, although the server is
        # there.
        if isinstance(error, tf.errors.AbortedError):
            if _EXTENDED_TWICE in error.message:
                raise _GraphDiffersError from None
            if _RECEIVED_TWICE in error.message:
                raise ResponseLostError(
                    "A call to a parameter server cannot be repeated safely. Received: a "
                    f"connection to ps {self.number} ({self.address}) that broke before the "
                    "response arrived. Restart the job from its last checkpoint."
                ) from None
        if isinstance(error, tf.errors.InvalidArgumentError) and INCOMPLETE_CHANGE in error.message:
            raise ServerUnavailableError(
                "A parameter server cannot continue after an incomplete change. Received: a change "
                f"on ps {self.number} ({self.address}) that was interrupted by a broken connection "
                "or an error. Restart the job, including its servers, from its last checkpoint."
            ) from None
        # Aborted for another reason: a server that was restarted does not know the session.
        if isinstance(error, (tf.errors.UnavailableError, tf.errors.AbortedError)):
            raise _ServerGoneError(error.message.splitlines()[0]) from None
        if isinstance(error, _HAS_NO_VALUE) and self._restarts_seen:
            # So that all tasks are restarted, and not this worker alone, which would not help.
            report(EXCHANGED)
            raise ServerUnavailableError(
                "A parameter server that was restarted must have a value of each variable. "
                f"Received: ps {self.number} ({self.address}), which was lost before it had saved "
                "all of them. Restart the job, including its servers, from its last checkpoint."
            ) from error
        if error is not None:
            raise error
        return result

    def _last_answer(self, start: float, answered: float) -> float:
        """Returns when the server's host last answered: now, or `answered` if it does not.

        Raises:
          _ServerGoneError: if the server is gone, or has been silent for too long.
        """
        state, now = address_state(self.address), time.monotonic()
        if state == "closed":
            raise _ServerGoneError("no process listens on its address")
        if state == "unreachable" and now - answered >= LOST_SECONDS:
            raise _ServerGoneError(f"its host has not answered for {now - answered:.0f} s")
        if now - start >= self._step_timeout and not self._is_awake():
            raise _ServerGoneError(
                f"no answer in {now - start:.0f} s, where --step-timeout is {self._step_timeout:g}",
                may_return=False,
            )
        return answered if state == "unreachable" else now

    def _is_awake(self) -> bool:
        """Returns whether the server responds to a call of an empty operation."""
        with self._lock:
            response = self._start_call(self._nothing, None)
        try:
            *_, error = response.get(timeout=_ANSWER_SECONDS)
        except queue.Empty:
            return False
        return error is None

    def _start_call(self, fetches: Any, feeds: dict[Any, Any] | None) -> queue.SimpleQueue[Any]:
        """Starts a call; returns the queue that receives its response.

        TensorFlow waits forever for a server that is gone, so calls are made in daemon threads.
        `close` ends them before the interpreter does, which would abort the process; see
        [Note: the end of the interpreter] in utils/background_thread.py.
        """
        responses: queue.SimpleQueue[Any] = queue.SimpleQueue()
        call_in_thread(responses, None, lambda: self._session.run(fetches, feeds))
        return responses

    def _mark_lost(self, reason: str) -> ServerUnavailableError:
        """Marks the server as lost, and returns the error to raise."""
        self._is_lost = True
        if self._restarts is not None:
            self._restarts.give_up()
        return ServerUnavailableError(
            f"Parameter servers must run until all workers are done. Received: ps {self.number} "
            f"({self.address}) is gone: {reason}. See its output for the cause."
        )

    def sessions(self) -> list[Session]:
        """Returns the sessions of this connection and of the connections that it opened."""
        others = [other for each in self._connections for other in each.sessions()]
        return [self._session, *self._former_sessions, *others]

    def locked(
        self,
        body: Callable[[], Sequence[tf.Tensor]],
        lock: Lock | None = None,
        changes: bool = True,
    ) -> tuple[tf.Operation, list[Any]]:
        """Adds the operations of `body` to the graph as one atomic operation.

        Args:
          body: creates operations and returns tensors.
          lock: the lock to hold. None is the lock for all updates of variables.
          changes: whether the operations change anything on the server.

        Returns:
          The operation and its results.
        """
        with self.building():
            return (lock or self.lock).call(body, changes)


@contextlib.contextmanager
def _function_call_options(options: FunctionCallOptions | None) -> Iterator[None]:
    """Sets the options of this thread's function calls in the block; None changes nothing."""
    before = context().function_call_options
    context().function_call_options = options or before
    try:
        yield
    finally:
        context().function_call_options = before


def close(sessions: Sequence[Session], server: ServerConnection) -> None:
    """Closes sessions with a server, and waits until no thread is in a call to them.

    Hardly waits if the server is gone; otherwise, up to a minute or a shorter `--step-timeout`.

    Args:
      sessions: the sessions.
      server: their server.
    """
    # Otherwise TensorFlow would close them when Python exits, and wait for a server that is gone.
    # For the callers, see [Note: the end of the interpreter] in utils/background_thread.py.
    threads = [threading.Thread(target=_close, args=(each,), daemon=True) for each in sessions]
    for thread in threads:
        thread.start()
    threads += [caller for session in sessions for caller in session.callers()]
    join_while_there(threads, server, min(_CLOSE_SECONDS, step_timeout_seconds()))


def join_while_there(
    threads: Sequence[threading.Thread], server: ServerConnection, seconds: float
) -> None:
    """Waits for threads that are in calls to a server, as long as the server may answer.

    TensorFlow waits forever for the response of a server that has ended. The last worker's call
    ends the server, so its response may be lost.

    Args:
      threads: the threads.
      server: the server.
      seconds: the longest time to wait if the server is there.
    """
    begin = answered = time.monotonic()
    for thread in threads:
        while thread.is_alive() and not server.is_lost:
            state, now = address_state(server.address), time.monotonic()
            answered = answered if state == "unreachable" else now
            is_over = now - begin >= seconds or now - answered >= LOST_SECONDS
            if state == "closed" or is_over:
                break
            thread.join(_CHECK_EVERY_SECONDS)
        thread.join(_LOST_ANSWER_SECONDS)


def _close(session: Session) -> None:
    # A server that was restarted does not know the session.
    with contextlib.suppress(tf.errors.OpError):
        session.close()


class ServerGroup:
    """All parameter servers of a job.

    Args:
      servers: the connections, by the servers' numbers.
      rank: this worker's rank.
      size: the number of workers.

    Attributes:
      present: for each worker, whether it took part in the last collective operation.
      operations: tracks the operation in which this worker waits for other workers.
      acknowledged: for each server, how many steps of this worker it has acknowledged.
      presence: who is present in an elastic job; None if the number of workers is fixed.
    """

    def __init__(self, servers: Sequence[ServerConnection], rank: int, size: int):
        self.servers = tuple(servers)
        self.rank = rank
        self.size = size
        self.present = [True] * size
        self.operations = OperationTracker()
        self.acknowledged = {server.number: 0 for server in self.servers}
        # A `Presence`, whose module imports this one.
        self.presence: Any = None

    def is_leader_of(self, server: int) -> bool:
        """Returns whether this worker acts for a server on behalf of all workers."""
        return self.rank == leader(server, self.present)

    def __len__(self) -> int:
        return len(self.servers)

    def each(self, action: Callable[[ServerConnection], _T]) -> list[_T]:
        """Calls a function with each server in parallel; returns the results by server number."""
        if len(self.servers) == 1:
            return [action(self.servers[0])]
        responses: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # Not in a thread pool: Python shuts it down before the last updates are sent.
        for server in self.servers:
            call_in_thread(responses, server.number, functools.partial(action, server))
        results: dict[int, _T] = {}
        for _ in self.servers:
            number, result, error = responses.get()
            if error is not None:
                raise error
            results[number] = result
        return [results[server.number] for server in self.servers]


def leader(number: int, present: Sequence[bool]) -> int:
    """Returns the rank of the worker that leads a numbered task, among the workers present.

    >>> leader(4, [True, True, True]), leader(4, [True, False, True])
    (1, 2)
    """
    ranks = [(number + step) % len(present) for step in range(len(present))]
    return next(rank for rank in ranks if present[rank])


def call_in_thread(results: queue.SimpleQueue[Any], key: Any, call: Callable[[], Any]) -> None:
    """Makes a call in a thread, which puts the key, the result and the error into a queue."""

    def put_result() -> None:
        try:
            results.put((key, call(), None))
        except BaseException as error:
            results.put((key, None, error))

    threading.Thread(target=put_result, daemon=True).start()


def address_state(address: Address) -> str:
    """Returns the state of an address: "taken" (a process listens), "closed" or "unreachable"."""
    return connect([address], _ANSWER_SECONDS)[address].state


def connect_servers(cluster: ClusterSpec, task: Task, timeout: float) -> ServerGroup:
    """Waits for the servers of a cluster and connects to them.

    Args:
      cluster: the cluster's tasks and addresses.
      task: the task of this process.
      timeout: the number of seconds to wait.

    Raises:
      TimeoutError: if a server does not answer in time; the message names the server.
    """
    _wait_for_servers(cluster, task, timeout)
    servers = [
        ServerConnection(server.index, cluster.addresses[server]) for server in cluster.tasks("ps")
    ]
    tasks = cluster.training_tasks
    return ServerGroup(servers, tasks.index(task), len(tasks))


def _wait_for_servers(cluster: ClusterSpec, task: Task, timeout: float) -> None:
    missing = list(cluster.tasks("ps"))

    def all_answer() -> bool:
        answers = connect([cluster.addresses[server] for server in missing], _ANSWER_SECONDS)
        missing[:] = [s for s in missing if answers[cluster.addresses[s]].state != "taken"]
        return not missing

    wait_until(
        all_answer,
        lambda: ", ".join(f"{server} ({cluster.addresses[server]})" for server in missing),
        lambda names: (
            f"All parameter servers must answer within {timeout:g} s. Received at "
            f"{task}: no answer from {names}. Start 'python -m strategies.serve' for each of them "
            "('tf-config run' does this), and check that their addresses can be reached."
        ),
        timeout,
        waiter=task,
    )
