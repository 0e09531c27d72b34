"""The rendezvous of all workers at the start, with a timeout that names the missing ones.

The first worker serves a small key-value store over HTTP (Horovod's rendezvous server, or
`StoreServer`). Each worker writes its name there and looks for the names of all others.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus

from strategies.collectives.startup.waiting import pauses_up_to, wait_until
from tf_config import Address, ClusterConfigError, ClusterSpec, Task
from tf_config.bind_address import listening_hosts
from tf_config.rendezvous.http_store import StoreHandler, StoreServer, ask
from tf_config.secret import SECRET_VARIABLE, secret_of

# Returns the bytes that every worker passed, by rank; all workers call it together.
Exchange = Callable[[bytes], list[bytes]]

_POLL_SECONDS = 0.1
_SERVE_POLL_SECONDS = 0.05
_EXCHANGE_POLL_SECONDS = 0.01
_LEAVE_SECONDS = 10.0
_ARRIVALS = "keras_strategies_meeting"
_DEPARTURES = "keras_strategies_parting"
_EXCHANGES = "keras_strategies_exchange"


@contextlib.contextmanager
def meeting(
    cluster: ClusterSpec, task: Task, timeout: float, communication: str
) -> Iterator[Exchange]:
    """Waits for all workers through a store that the first worker serves while the block runs.

    Yields:
      A function that exchanges bytes among all workers.

    Raises:
      TimeoutError: if a worker does not arrive in time; the message names it.
      ClusterConfigError: if the first worker's port is taken, or the workers' clusters or ways of
        communication differ.
    """
    is_first = task == cluster.training_tasks[0]
    address = cluster.addresses[task]
    server = serve(StoreServer, address, task, StoreHandler, secret_of()) if is_first else None
    try:
        wait_for_all(cluster, task, timeout, communication)
        yield _exchange_in_store(cluster, task, timeout)
        leave(cluster, task, wait_for_others=is_first)
    finally:
        if server is not None:
            # Another server may listen at the same address next.
            server.shutdown()
            server.server_close()


def wait_for_end(cluster: ClusterSpec, task: Task) -> None:
    """Waits until the store of a meeting is gone, so that the next one begins with an empty store.

    Args:
      cluster: the workers.
      task: the task of this process, which has left the meeting.
    """
    store = Store(cluster.addresses[cluster.training_tasks[0]], _DEPARTURES)
    end = time.monotonic() + 2 * _LEAVE_SECONDS
    pauses = pauses_up_to(_POLL_SECONDS)
    while store.get(task) is not None and time.monotonic() < end:
        time.sleep(next(pauses))


def _exchange_in_store(cluster: ClusterSpec, task: Task, timeout: float) -> Exchange:
    tasks = cluster.training_tasks
    numbers = itertools.count()

    def exchange(mine: bytes) -> list[bytes]:
        store = Store(cluster.addresses[tasks[0]], f"{_EXCHANGES}_{next(numbers)}")
        found: dict[Task, bytes] = {}

        def has_all() -> bool:
            if task not in found and store.put(task, mine):
                found[task] = mine
            for other in tasks:
                entry = None if other in found else store.get(other)
                if entry is not None:
                    found[other] = entry
            return len(found) == len(tasks)

        wait_until(
            has_all,
            lambda: ", ".join(str(other) for other in tasks if other not in found),
            lambda names: (
                f"All workers must exchange their addresses within {timeout:g} s. Received at "
                f"{task}: none from {names}. See their output."
            ),
            timeout,
            waiter=task,
            poll_seconds=_EXCHANGE_POLL_SECONDS,
        )
        return [found[each] for each in tasks]

    return exchange


def wait_for_all(
    cluster: ClusterSpec, task: Task, timeout: float, communication: str = "horovod"
) -> None:
    """Waits for all workers; logs the missing ones every 5 seconds.

    Args:
      cluster: the cluster as this task knows it.
      task: the task of this process.
      timeout: the number of seconds to wait.
      communication: the way in which this task exchanges values.

    Raises:
      TimeoutError: if a worker does not arrive in time; the message names it.
      ClusterConfigError: if a worker arrives with another cluster or another way of
        communication.
    """
    tasks = cluster.training_tasks
    store = Store(cluster.addresses[tasks[0]])
    digest = hashlib.sha256(repr(cluster.to_dict()).encode()).hexdigest()
    mine = f"{digest} {communication}".encode()
    others = [other for other in tasks if other != task]
    has_arrived = False

    def all_arrived() -> bool:
        nonlocal has_arrived
        # Repeated each time: a restarted first worker has an empty store.
        has_arrived = not others or store.put(task, mine)
        # One request at a time: with all at once, N workers would send N * N.
        while has_arrived and others and _has_arrived(store, others[0], mine):
            others.pop(0)
        return not others

    def missing() -> str:
        if has_arrived:
            others[:] = [other for other in others if not _has_arrived(store, other, mine)]
        # If the store does not answer, only the first worker is known to be missing.
        absent = others if has_arrived else tasks[:1]
        names = ", ".join(f"{other} ({cluster.addresses[other]})" for other in absent)
        return f"{names}, who has another {SECRET_VARIABLE}" if store.is_refused else names

    wait_until(
        all_arrived,
        missing,
        lambda names: (
            f"All workers must connect at the start of training within {timeout:g} s. "
            f"Received at {task}: nothing from {names}. Check that each of them was started "
            "with the same cluster and did not fail; '--start-timeout' or the argument "
            "start_timeout raises the limit."
        ),
        timeout,
        waiter=task,
    )


def leave(cluster: ClusterSpec, task: Task, wait_for_others: bool = False) -> None:
    """Announces that this task has met all others and no longer needs the store.

    Args:
      cluster: the workers.
      task: the task of this process.
      wait_for_others: whether to wait, for a limited time, until all others have announced it.
    """
    tasks = cluster.training_tasks
    store = Store(cluster.addresses[tasks[0]], _DEPARTURES)
    store.put(task, b"")
    end = time.monotonic() + _LEAVE_SECONDS
    pauses = pauses_up_to(_POLL_SECONDS)
    while wait_for_others and time.monotonic() < end:
        if all(store.get(other) is not None for other in tasks):
            return
        time.sleep(next(pauses))


class Store:
    """A client of the first worker's key-value store.

    Args:
      address: the address of the first worker.
      scope: the scope of the entries.

    Attributes:
      is_refused: whether the last request was refused, because the store has another secret.
    """

    def __init__(self, address: Address, scope: str = _ARRIVALS):
        self._address = address
        self._scope = scope
        self._secret = secret_of()
        self.is_refused = False

    def put(self, key: Task | str, value: bytes) -> bool:
        """Writes an entry under a task or a name; returns whether the store accepted it."""
        status, _ = self._request("PUT", key, value)
        return status == HTTPStatus.OK

    def get(self, key: Task | str) -> bytes | None:
        """Returns an entry; None if it does not exist."""
        status, body = self._request("GET", key)
        return body if status == HTTPStatus.OK else None

    def _request(self, method: str, key: Task | str, body: bytes = b"") -> tuple[int, bytes]:
        path = f"/{self._scope}/{key if isinstance(key, str) else key.label}"
        status, content = ask(self._address, method, path, body, self._secret)
        self.is_refused = status == HTTPStatus.FORBIDDEN
        return status, content


def serve(
    server_class: type[socketserver.BaseServer], address: Address, task: Task, *arguments: object
) -> socketserver.BaseServer:
    """Starts a server at an address, in a separate thread.

    Args:
      server_class: the class of the server.
      address: the address to listen on.
      task: the task whose address it is.
      *arguments: the arguments of `server_class` after the address.

    Raises:
      ClusterConfigError: if the address is taken.
    """
    places = listening_hosts(address.host)
    attributes = {
        "daemon_threads": True,
        "allow_reuse_port": False,  # newer Python versions would let two servers share the port
        "address_family": places[0][0],
    }
    server_class = type("Server", (server_class,), attributes)
    for place in places:
        _, host = place
        try:
            server = server_class((host, address.port), *arguments)  # type: ignore[arg-type]
        except OSError as error:
            unknown = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
            if unknown and place is not places[-1]:
                continue
            raise ClusterConfigError(
                "The first worker must be able to listen on its address in TF_CONFIG. Received: "
                f"{address} for {task} ({error.strerror}). Use a free port of this machine."
            ) from None
        break
    # The longest time that stopping the server takes.
    poll = {"poll_interval": _SERVE_POLL_SECONDS}
    thread = threading.Thread(
        target=server.serve_forever, kwargs=poll, name="rendezvous", daemon=True
    )
    thread.start()
    return server


def _has_arrived(store: Store, task: Task, expected: bytes) -> bool:
    entry = store.get(task)
    if entry is not None and entry.split()[:1] == expected.split()[:1] and entry != expected:
        theirs, ours = (each.split()[-1].decode(errors="replace") for each in (entry, expected))
        raise ClusterConfigError(
            f"All workers must use the same communication. Received: {theirs} on {task}, {ours} "
            "here. Pass the same argument communication to all of them, or set the same "
            "KERAS_STRATEGIES_COMMUNICATION; 'tf-config doctor' shows where Horovod can be used."
        )
    if entry is not None and entry != expected:
        raise ClusterConfigError(
            "All workers must have the same cluster in TF_CONFIG. Received: a different one on "
            f"{task}. Compare the output of 'tf-config show' on both, and restart all tasks."
        )
    return entry is not None
