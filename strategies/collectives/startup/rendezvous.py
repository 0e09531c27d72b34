"""The rendezvous of all workers at the start, with a timeout that names those missing.

The first worker serves a small store over HTTP (Horovod's rendezvous server, or `StoreServer`);
each worker leaves its name there and looks for the names of all others.
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
from tf_config.listening import listening_hosts
from tf_config.secret import SECRET_VARIABLE, secret_of
from tf_config.store import StoreHandler, StoreServer, ask

# Gives what every worker gave it, by rank; all of them call it together.
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
    """Waits for all workers, through a store that the first one serves while the block runs.

    Yields:
      What exchanges bytes with all of them.

    Raises:
      TimeoutError: if a worker does not come in time; the message names it.
      ClusterConfigError: if the first worker's port is taken, or the workers differ.
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
            # Something else may listen at the same address next.
            server.shutdown()
            server.server_close()


def wait_for_end(cluster: ClusterSpec, task: Task) -> None:
    """Waits until the store of a meeting is gone, so that a next one begins with an empty store.

    Args:
      cluster: the workers.
      task: this one, which has left the meeting.
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
                f"Workers that have met tell each other where they are within {timeout:g} s. "
                f"{task} still waits for {names}. See what they printed."
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
    """Waits for all workers; logs those that are missing every 5 seconds.

    Args:
      cluster: what this task was told of the cluster.
      task: this one.
      timeout: seconds until it gives up.
      communication: what it takes to exchange values.

    Raises:
      TimeoutError: if a worker did not come in time; the message names it.
      ClusterConfigError: if a worker came that was told of another cluster, or that takes
        something else to exchange values.
    """
    tasks = cluster.training_tasks
    store = Store(cluster.addresses[tasks[0]])
    digest = hashlib.sha256(repr(cluster.to_dict()).encode()).hexdigest()
    mine = f"{digest} {communication}".encode()
    others = [other for other in tasks if other != task]
    has_arrived = False

    def all_arrived() -> bool:
        nonlocal has_arrived
        # Each time: a first worker that was started again knows of nobody.
        has_arrived = not others or store.put(task, mine)
        # One question at a time: with all at once, N workers would ask N * N.
        while has_arrived and others and _has_arrived(store, others[0], mine):
            others.pop(0)
        return not others

    def missing() -> str:
        if has_arrived:
            others[:] = [other for other in others if not _has_arrived(store, other, mine)]
        # Where nobody answers, the first worker is not here, and only that is known.
        absent = others if has_arrived else tasks[:1]
        names = ", ".join(f"{other} ({cluster.addresses[other]})" for other in absent)
        return f"{names}, who has another {SECRET_VARIABLE}" if store.is_refused else names

    wait_until(
        all_arrived,
        missing,
        lambda names: (
            f"All workers meet at the start of training within {timeout:g} s. {task} "
            f"still waits for {names}. See that each of them was started with the same "
            "cluster and did not fail; a longer wait is set with '--start-timeout' or "
            "the argument start_timeout."
        ),
        timeout,
        waiter=task,
    )


def leave(cluster: ClusterSpec, task: Task, wait_for_others: bool = False) -> None:
    """Announces that this task has met all others and no longer needs the store.

    Args:
      cluster: the workers.
      task: this one.
      wait_for_others: whether to return only when all others have said so, or are late.
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
    """The first worker's key-value store, as the others see it.

    Args:
      address: of the first worker.
      scope: what the entries belong to.

    Attributes:
      is_refused: whether the last request was, for the job's secret is another one there.
    """

    def __init__(self, address: Address, scope: str = _ARRIVALS):
        self._address = address
        self._scope = scope
        self._secret = secret_of()
        self.is_refused = False

    def put(self, key: Task | str, value: bytes) -> bool:
        """Writes an entry, of a task or of all; returns whether the store was there."""
        status, _ = self._request("PUT", key, value)
        return status == HTTPStatus.OK

    def get(self, key: Task | str) -> bytes | None:
        """Returns an entry; None if there is none."""
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
    """Starts a server at an address, in a thread of its own.

    Args:
      server_class: what is started.
      address: where it listens.
      task: whose address that is.
      *arguments: those of `server_class` after the address.

    Raises:
      ClusterConfigError: if the address is taken.
    """
    places = listening_hosts(address.host)
    attributes = {
        "daemon_threads": True,
        "allow_reuse_port": False,  # newer Pythons share the port between two servers
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
                f"The first worker listens at its own address. Received: {address} for {task}, "
                f"but {error.strerror}. Choose a free port of this machine in TF_CONFIG."
            ) from None
        break
    # To stop it takes up to so many seconds.
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
            f"All workers exchange values in one way. Received: {theirs} in {task}, {ours} here. "
            "Give all of them the same argument communication, or the same variable "
            "KERAS_STRATEGIES_COMMUNICATION; 'tf-config doctor' says where Horovod can be used."
        )
    if entry is not None and entry != expected:
        raise ClusterConfigError(
            "All workers are told of the same cluster. Received: another one in "
            f"{task}. Compare 'tf-config show' on both, and start all tasks anew."
        )
    return entry is not None
