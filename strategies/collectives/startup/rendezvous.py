"""The rendezvous of all workers at the start, with a timeout that names the missing ones.

The first worker serves a small key-value store over HTTP (Horovod's rendezvous server, or
`StoreServer`). Each worker writes its name there and looks for the names of all others.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import socketserver
import threading
from collections.abc import Callable, Iterator

from strategies.collectives.startup.waiting import wait_until
from tf_config import Address, ClusterConfigError, ClusterSpec, Task
from tf_config.bind_address import bind_first, listening_hosts
from tf_config.rendezvous.http_store import HttpStore, StoreServer
from tf_config.rendezvous.waiting import Deadline
from tf_config.secret import SECRET_VARIABLE, secret_of

# Returns the bytes that every worker passed, by rank; all workers call it together.
Exchange = Callable[[bytes], list[bytes]]

_POLL_SECONDS = 0.1
_SERVE_POLL_SECONDS = 0.05
_EXCHANGE_POLL_SECONDS = 0.01
_LEAVE_SECONDS = 10.0
ARRIVALS = "keras_strategies_meeting"
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
      ClusterConfigError: if the first worker's port is taken, or the workers' clusters or back ends
        differ.
    """
    is_first = task == cluster.training_tasks[0]
    address = cluster.addresses[task]
    server = serve(StoreServer, address, task, secret_of()) if is_first else None
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
    store = HttpStore(cluster.addresses[cluster.training_tasks[0]], _DEPARTURES)
    deadline = Deadline(2 * _LEAVE_SECONDS, poll_seconds=_POLL_SECONDS)
    deadline.poll(lambda: store.get(task) is None)


def _exchange_in_store(cluster: ClusterSpec, task: Task, timeout: float) -> Exchange:
    tasks = cluster.training_tasks
    numbers = itertools.count()

    def exchange(own: bytes) -> list[bytes]:
        store = HttpStore(cluster.addresses[tasks[0]], f"{_EXCHANGES}_{next(numbers)}")
        received: dict[Task, bytes] = {}

        def has_all() -> bool:
            if task not in received and store.put(task, own):
                received[task] = own
            for other in tasks:
                entry = None if other in received else store.get(other)
                if entry is not None:
                    received[other] = entry
            return len(received) == len(tasks)

        wait_until(
            has_all,
            lambda: ", ".join(str(other) for other in tasks if other not in received),
            lambda names: (
                f"All workers must exchange their addresses within {timeout:g} s. Received at "
                f"{task}: none from {names}. See the output of these workers."
            ),
            timeout,
            waiter=task,
            poll_seconds=_EXCHANGE_POLL_SECONDS,
        )
        return [received[each] for each in tasks]

    return exchange


def wait_for_all(
    cluster: ClusterSpec, task: Task, timeout: float, communication: str = "horovod"
) -> None:
    """Waits for all workers; logs the missing ones every 5 seconds.

    Args:
      cluster: the cluster as this task knows it.
      task: the task of this process.
      timeout: the number of seconds to wait.
      communication: the name of the back end that this task uses.

    Raises:
      TimeoutError: if a worker does not arrive in time; the message names it.
      ClusterConfigError: if a worker arrives with another cluster or another back end.
    """
    tasks = cluster.training_tasks
    store = HttpStore(cluster.addresses[tasks[0]], ARRIVALS)
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
        return f"{names}, which has another {SECRET_VARIABLE}" if store.is_refused else names

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
    store = HttpStore(cluster.addresses[tasks[0]], _DEPARTURES)
    store.put(task, b"")
    if wait_for_others:
        deadline = Deadline(_LEAVE_SECONDS, poll_seconds=_POLL_SECONDS)
        deadline.poll(lambda: all(store.get(other) is not None for other in tasks))


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
    family, _ = listening_hosts(address.host)[0]
    attributes = {
        "daemon_threads": True,
        "allow_reuse_port": False,  # newer Python versions would let two servers share the port
        "address_family": family,
    }
    server_class = type("Server", (server_class,), attributes)
    try:
        server = bind_first(
            address.host,
            lambda host: server_class((host, address.port), *arguments),  # type: ignore[arg-type]
        )
    except OSError as error:
        raise ClusterConfigError(
            "The first worker must be able to listen on its address in TF_CONFIG. Received: "
            f"{address} for {task} ({error.strerror}). Use a free port of this machine."
        ) from None
    # The longest time that stopping the server takes.
    poll = {"poll_interval": _SERVE_POLL_SECONDS}
    thread = threading.Thread(
        target=server.serve_forever, kwargs=poll, name="rendezvous", daemon=True
    )
    thread.start()
    return server


def _has_arrived(store: HttpStore, task: Task, expected: bytes) -> bool:
    entry = store.get(task)
    if entry is not None and entry.split()[:1] == expected.split()[:1] and entry != expected:
        theirs, ours = (each.split()[-1].decode(errors="replace") for each in (entry, expected))
        raise ClusterConfigError(
            f"All workers must use the same communication. Received: {theirs} on {task}, {ours} "
            "here. Pass the same argument communication to all of them, or set the same "
            "KERAS_STRATEGIES_COMMUNICATION; 'tf-config doctor' shows whether Horovod can be used "
            "on a host. If only some workers have GPUs, set CUDA_VISIBLE_DEVICES=-1 on all."
        )
    if entry is not None and entry != expected:
        raise ClusterConfigError(
            "All workers must have the same cluster in TF_CONFIG. Received: a different one on "
            f"{task}. Compare the output of 'tf-config show' on both, and restart all tasks."
        )
    return entry is not None
