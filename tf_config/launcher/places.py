"""The places of an elastic job that workers may take while it runs.

`tf-config run --workers MIN:MAX` has a `PlaceServer`, and `tf-config join` a `TakenPlace`. Their
connection stays open as long as the worker runs, so each knows at once if the other is gone.
Messages are lines as in a rendezvous at a TCP address; see rendezvous/messages.py.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tf_config.address import Address
from tf_config.cluster import ClusterSpec, Task, TFConfig
from tf_config.errors import ClusterConfigError, quoted
from tf_config.launcher.descriptors import wait_for_descriptors
from tf_config.rendezvous.messages import LONGEST_MESSAGE, Unsigned, decode, encode
from tf_config.rendezvous.waiting import Deadline
from tf_config.secret import SECRET_VARIABLE
from tf_config.worker_range import WorkerRange

_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 30.0
_KEEP_ALIVE_SECONDS = 20
# Why a job ends a worker that has joined it.
OVER, RESTARTS = "over", "restarts"
# How a worker ends that has joined a job.
IS_DONE, HAS_LEFT = "is done", "has left"


@dataclass(frozen=True)
class Attempt:
    """One start of a job.

    Attributes:
      cluster: the addresses of all workers, with those that are vacant, and of the servers.
      vacant: the workers that are not started.
      rendezvous: the address of the job's rendezvous.
      variables: the settings of the job for a worker that joins it.
    """

    cluster: ClusterSpec
    vacant: Sequence[Task]
    rendezvous: Address
    variables: Mapping[str, str]


@dataclass(frozen=True)
class Place:
    """The place that a worker has taken.

    Attributes:
      config: the worker's TF_CONFIG.
      rendezvous: the address of the job's rendezvous.
      variables: the settings of the job.
    """

    config: TFConfig
    rendezvous: Address
    variables: Mapping[str, str] = field(default_factory=dict)


class PlaceServer:
    """Gives the vacant places of a job to workers that ask for one.

    Args:
      workers: the numbers of workers of the job.
      host: the address to listen on; "" for all of this machine's.
      port: the port; 0 for a free one.
      secret: the job's secret.

    Attributes:
      workers: the numbers of workers of the job.
      notes: messages for the user.
      port: the port on which it listens.
      departures: how many of the workers that had joined have ended before they were done.

    Raises:
      ClusterConfigError: if it cannot listen there.
    """

    def __init__(self, workers: WorkerRange, host: str, port: int, secret: str):
        self.workers = workers
        self.notes: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.departures = 0
        self._secret = secret
        self._lock = threading.Lock()
        self._attempt: Attempt | None = None
        self._vacant: list[Task] = []
        self._joined: dict[Task, socket.socket] = {}
        try:
            self._listener = socket.create_server((host, port), backlog=64)
        except OSError as error:
            raise ClusterConfigError(
                "--join-port must be a free port of this machine. Received: "
                f"{port} ({error.strerror or error}). Choose another one, or omit it."
            ) from None
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="places", daemon=True).start()

    def begin(self, attempt: Attempt) -> None:
        """Begins an attempt, of which workers may take the vacant places from now on."""
        with self._lock:
            self._attempt = attempt
            self._vacant = list(attempt.vacant)
            self.departures = 0

    def end(self, reason: str) -> None:
        """Ends the workers that have joined.

        Args:
          reason: `OVER` or `RESTARTS`.
        """
        with self._lock:
            self._attempt, self._vacant = None, []
            joined, self._joined = list(self._joined.values()), {}
        for connection in joined:
            with contextlib.suppress(OSError):
                connection.sendall(encode({"end": reason}, self._secret))

    def close(self) -> None:
        """Ends the workers that have joined, and listens no longer."""
        self.end(OVER)
        # Wakes up the thread that accepts connections.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def vacate(self, task: Task) -> None:
        """Makes the place of a worker vacant that has left."""
        with self._lock:
            if self._attempt is not None and task not in self._vacant:
                self._vacant.append(task)

    @property
    def joined(self) -> list[Task]:
        """The workers that have joined and run."""
        with self._lock:
            return list(self._joined)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(
                target=self._serve, args=(connection,), name="place", daemon=True
            ).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            _keep_alive(connection)
            connection.settimeout(_ANSWER_SECONDS)
            lines = _Lines(connection, self._secret)
            try:
                request = lines.next()
                host, port = str(request["host"]), int(request["port"])
                address = Address.parse(str(Address(host, port)))
            except Unsigned:
                self.notes.put(f"rejected a connection without this job's {SECRET_VARIABLE}")
                return
            except (ValueError, KeyError, TypeError):
                return
            task, answer = self._take(connection, address)
            connection.sendall(encode(answer, self._secret))
            if task is None:
                return
            self.notes.put(f"{task} joins the job, on {host}")
            connection.settimeout(None)
            try:
                end = lines.next()
                what = str(end["end"])
            except (OSError, Unsigned, ValueError, KeyError, TypeError):
                what = "is lost: its connection ended"
            self._release(task, connection, what)

    def _take(
        self, connection: socket.socket, address: Address
    ) -> tuple[Task | None, dict[str, Any]]:
        """Returns the place that a worker takes, if there is one, and the answer to it."""
        with self._lock:
            attempt = self._attempt
            if attempt is None:
                return None, {"wait": "the job is starting or ending"}
            if not self._vacant:
                received = f"{self.workers.most} present, of --workers {self.workers}"
                return None, {
                    "error": "A worker can only join a job that has a vacant place. Received: "
                    f"{received}. Wait until one of them leaves, or start the job with a larger "
                    "MAX."
                }
            task = min(self._vacant, key=lambda task: task.index)
            try:
                cluster = ClusterSpec({**attempt.cluster.addresses, task: address})
            except ClusterConfigError as error:
                return None, {"error": str(error)}
            self._vacant.remove(task)
            self._joined[task] = connection
        return task, {
            "cluster": cluster.to_dict(),
            "task": str(task),
            "rendezvous": str(attempt.rendezvous),
            "variables": dict(attempt.variables),
        }

    def _release(self, task: Task, connection: socket.socket, what: str) -> None:
        with self._lock:
            if self._joined.get(task) is not connection:
                return  # of an attempt that has ended
            del self._joined[task]
            self._vacant.append(task)
            self.departures += what != IS_DONE
        self.notes.put(f"{task}, which had joined the job, {what}")


class JobOverError(Exception):
    """The job has ended that a worker was to join again."""


class TakenPlace:
    """The place of this machine's worker in an elastic job.

    Args:
      address: the address that `tf-config run` has printed.
      secret: the job's secret.
      rejoins: whether this machine's worker has been in the job before.
    """

    def __init__(self, address: Address, secret: str, rejoins: bool = False):
        self._address = address
        self._secret = secret
        self._rejoins = rejoins
        self._connection: socket.socket | None = None
        self._lines: _Lines | None = None

    def take(self, host: str | None, port: int, deadline: Deadline) -> Place:
        """Asks for a place until there is one.

        Args:
          host: the address at which others reach this machine; None for that of the connection.
          port: a free port of this machine.
          deadline: the timeout.

        Raises:
          ClusterConfigError: if the job has no vacant place, or does not answer in time.
          JobOverError: if the job has ended that this machine's worker has been in.
        """
        while True:
            answer, waiting = self._ask(host, port)
            if answer is not None and "cluster" in answer:
                return _place_of(answer)
            if answer is not None and "error" in answer:
                raise ClusterConfigError(str(answer["error"]))
            if deadline.is_over:
                raise ClusterConfigError(
                    f"The job must answer within {deadline.timeout:g} s. Received: {waiting}. "
                    "Check that the job runs, that the address is the one that 'tf-config run' "
                    "has printed, and that the port is open; or raise --start-timeout."
                )
            deadline.tick(waiting)

    def _ask(self, host: str | None, port: int) -> tuple[dict[str, Any] | None, str]:
        """Returns the job's answer, or None, and the reason why there is no place yet."""
        at = self._address
        try:
            connection = socket.create_connection((at.host, at.port), _CONNECT_SECONDS)
        except OSError as error:
            # A job listens from its start to its end, also while it restarts its tasks.
            if self._rejoins and isinstance(error, ConnectionRefusedError):
                raise JobOverError from None
            return None, f"waiting for the job at {at} ({error.strerror or error})"
        try:
            _keep_alive(connection)
            host = host or connection.getsockname()[0].removeprefix("::ffff:").partition("%")[0]
            connection.sendall(encode({"host": host, "port": port}, self._secret))
            connection.settimeout(_ANSWER_SECONDS)
            lines = _Lines(connection, self._secret)
            answer = lines.next()
        except Unsigned:
            connection.close()
            return None, f"{at} answers without the signature of this job's {SECRET_VARIABLE}"
        except (OSError, ValueError):
            connection.close()
            return None, (
                f"{at} has closed the connection, as it does if {SECRET_VARIABLE} is not the "
                "job's, or if no elastic job runs there"
            )
        if not isinstance(answer, dict) or "cluster" not in answer:
            connection.close()
            text = answer.get("wait") if isinstance(answer, dict) else None
            return (answer if isinstance(answer, dict) else None), str(text)
        connection.settimeout(None)
        self._connection, self._lines = connection, lines
        return answer, ""

    def end_of_job(self) -> str | None:
        """Returns why the job ends this worker: `OVER`, `RESTARTS` or a text; None if it runs."""
        if self._connection is None or self._lines is None:
            return None
        if not wait_for_descriptors([self._connection], 0):
            return None
        try:
            return str(self._lines.next()["end"])
        except (OSError, Unsigned, ValueError, KeyError, TypeError):
            return "the connection to the job has ended"

    def leave(self, what: str) -> None:
        """Tells the job how this worker has ended."""
        if self._connection is None:
            return
        with self._connection, contextlib.suppress(OSError):
            self._connection.sendall(encode({"end": what}, self._secret))
        self._connection = self._lines = None


class _Lines:
    """The messages that arrive on a connection."""

    def __init__(self, connection: socket.socket, secret: str):
        self._connection = connection
        self._secret = secret
        self._data = b""

    def next(self) -> Any:
        """Waits for the next message and returns it.

        Raises:
          OSError: if the connection breaks.
          ValueError: if it ends, or the message is not valid.
          Unsigned: if the message is not signed.
        """
        while b"\n" not in self._data:
            step = self._connection.recv(1 << 16)
            if not step or len(self._data) > LONGEST_MESSAGE:
                raise ValueError("no message")
            self._data += step
        line, _, self._data = self._data.partition(b"\n")
        return decode(line, self._secret)


def _place_of(answer: Mapping[str, Any]) -> Place:
    try:
        cluster, task = ClusterSpec.from_dict(answer["cluster"]), Task.parse(answer["task"])
        variables = {str(name): str(value) for name, value in answer["variables"].items()}
        return Place(TFConfig(cluster, task), Address.parse(answer["rendezvous"]), variables)
    except (KeyError, TypeError, AttributeError):
        raise ClusterConfigError(
            "A job must be one of this version of keras-strategies. Received: "
            f"{quoted(answer)}. Install the same version on all hosts."
        ) from None


def _keep_alive(connection: socket.socket) -> None:
    """Makes the kernel end a connection whose other host has gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _KEEP_ALIVE_SECONDS),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 4),
    ):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def describe_end(code: int, has_left: bool) -> str:
    """Returns how a worker has ended, for the job that it had joined.

    >>> describe_end(0, has_left=True), describe_end(0, has_left=False), describe_end(3, False)
    ('has left', 'is done', 'has failed with exit code 3')
    """
    if code:
        return f"has failed with exit code {code}"
    return HAS_LEFT if has_left else IS_DONE
