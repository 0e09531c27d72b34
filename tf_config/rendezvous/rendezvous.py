"""The rendezvous at a URL, which results in a cluster."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tf_config.address import Address
from tf_config.builder import PORTS
from tf_config.cluster import TFConfig
from tf_config.errors import ClusterConfigError, quoted
from tf_config.network_interface import address_of, own_address
from tf_config.rendezvous import shared_directory as directory
from tf_config.rendezvous import tcp
from tf_config.rendezvous.participant import JoinRequest, Participant
from tf_config.rendezvous.waiting import Deadline


def rendezvous(
    url: str,
    participant: Participant,
    timeout: float,
    note: Callable[[str], None],
    interface: str | None = None,
    address: Address | None = None,
) -> TFConfig:
    """Waits until all processes have connected; returns the configuration of this process.

    Each process reports its host and a free port, and the leader sends the cluster to all others.
    The URL is like PyTorch's `init_method` (pytorch.org/docs/stable/distributed.html):
    `file:///shared/directory`, or `tcp://host:port` with the host of the leader.

    Args:
      url: the URL of the rendezvous.
      participant: this process and its rank.
      timeout: the number of seconds to wait for all processes.
      note: called every few seconds with a message that lists the missing tasks.
      interface: the network interface at which the others reach this process; None for that of the
        default route or of the route to the leader.
      address: the address that this process will listen on, if it is fixed; None for a free port.

    Raises:
      ClusterConfigError: if a task does not connect in time, or the reports contradict each other.
    """
    target = check_url(url)
    host = None if interface is None else address_of(interface)
    deadline = Deadline(timeout, note)
    with _reserved_port(target) as port:
        if address is not None:
            host, port = address.host, address.port
        if isinstance(target, Path):
            report = JoinRequest.of(participant, host or own_address(), port)
            cluster = directory.rendezvous(target, participant, report, deadline)
        else:
            cluster = tcp.rendezvous(target, participant, host, port, deadline)
    return TFConfig(cluster, participant.task)


def check_url(url: str) -> Path | Address:
    """Returns the directory or address in the URL of a rendezvous.

    >>> check_url("tcp://node1:2222")
    Address(host='node1', port=2222)
    >>> check_url("file:///shared/job-7")
    PosixPath('/shared/job-7')

    Raises:
      ClusterConfigError: if the URL contains neither of them.
    """
    try:
        parts = urlsplit(url)
    except ValueError:  # brackets without an IPv6 address
        parts = urlsplit("")
    if parts.scheme == "tcp" and not parts.path:
        return Address.parse(parts.netloc)
    if parts.scheme == "file" and not parts.netloc and parts.path:
        return Path(unquote(parts.path)).absolute()
    raise ClusterConfigError(
        "A rendezvous must be file:///directory, with a directory that all tasks share, or "
        f"tcp://host:port, with the host of the first task. Received: {quoted(url)}. Correct the "
        "URL."
    )


@contextlib.contextmanager
def _reserved_port(target: Path | Address) -> Iterator[int]:
    """Reserves a free port and the port above it while the block runs.

    The port of the rendezvous is never chosen, because the leader will listen on it.

    Yields:
      The port.
    """
    excluded = target.port if isinstance(target, Address) else None
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        if excluded in (port, port + 1):
            continue
        with (
            socket.socket(socket.AF_INET, socket.SOCK_STREAM) as holder,
            socket.socket(socket.AF_INET, socket.SOCK_STREAM) as above,
        ):
            try:
                holder.bind(("", port))
                above.bind(("", port + 1))  # the first task's sidecar will listen on it
            except OSError:
                continue
            yield port
            return
    raise ClusterConfigError(
        f"A task must have a free port from {PORTS.start} to {PORTS.stop - 1}. Received: all ports "
        "of this host are in use. End the programs that use them."
    )
