"""Hosts and their numbers of slots, from a list on the command line or from a file."""

from __future__ import annotations

import functools
import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tf_config.address import Address
from tf_config.errors import ClusterConfigError, quoted

_ITEM = re.compile(
    r"(?:(?P<user>[A-Za-z0-9_][\w.-]*)@)?"
    r"(?P<host>\[[^\]\s]*\]|[^:@\[\]\s]+)"
    r"(?::(?P<slots>[0-9]{1,9}))?",
    re.ASCII,
)
_MOST_SLOTS = 1 << 16
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Host:
    """A machine that tasks run on; validated on construction.

    Attributes:
      name: the host's name or IP address, without brackets.
      slots: the number of training tasks that the host runs.
      user: the user name for ssh; None for ssh's default.
    """

    name: str
    slots: int = 1
    user: str | None = None

    def __post_init__(self) -> None:
        Address.parse(str(Address(self.name, 1)))
        if not 1 <= self.slots <= _MOST_SLOTS:
            raise ClusterConfigError(
                f"The number of slots of a host must be from 1 to {_MOST_SLOTS}. Received: "
                f"{self.slots} on {quoted(self.name)}. For example: 'node1:2'."
            )

    @property
    def login(self) -> str:
        """The destination for ssh: `user@name`, or the name alone."""
        return self.name if self.user is None else f"{self.user}@{self.name}"

    @property
    def is_loopback(self) -> bool:
        """Whether the name is a loopback name, which on each machine means that machine."""
        return self.name.lower() in _LOOPBACK

    @property
    def is_here(self) -> bool:
        """Whether the host is known to be this machine."""
        return self.is_loopback or self.name.lower() in _own_names()


def parse_hosts(text: str) -> list[Host]:
    """Returns the hosts in a list of the form that `horovodrun -H` and `mpirun --host` use.

    A host without a number has one slot. The slots of a host that is listed twice are added up.

    >>> parse_hosts("node1:2,root@node2")
    [Host(name='node1', slots=2, user=None), Host(name='node2', slots=1, user='root')]
    >>> parse_hosts("[fd00::7]:4")
    [Host(name='fd00::7', slots=4, user=None)]

    Raises:
      ClusterConfigError: if the text is not such a list.
    """
    return _merge_slots(_host(item.strip(), text) for item in text.split(","))


def parse_hostfile(text: str, origin: str = "hostfile") -> list[Host]:
    """Returns the hosts in a hostfile of Open MPI, Horovod or MPICH, which has one per line.

    Lines are `node1 slots=4 max_slots=8`, `node1:4` or `node1`; `#` starts a comment.

    >>> parse_hostfile("node1 slots=4  # eth2\\nnode2:2")
    [Host(name='node1', slots=4, user=None), Host(name='node2', slots=2, user=None)]

    Args:
      text: the content of the file.
      origin: the file's name, for messages.

    Raises:
      ClusterConfigError: if a line is invalid, or the file names no host.
    """
    hosts = []
    for number, line in enumerate(text.splitlines(), 1):
        first, *options = line.partition("#")[0].split() or [""]
        if first:
            hosts.append(_apply_options(_host(first, line), options, f"{origin}, line {number}"))
    if not hosts:
        raise ClusterConfigError(
            f"A hostfile must contain at least one host. Received: none in {quoted(origin)}. Write "
            "lines such as 'node1 slots=2'."
        )
    return _merge_slots(hosts)


@functools.cache
def _own_names() -> tuple[str, ...]:
    # Cached, because the fully qualified name may require a DNS query.
    return socket.gethostname().lower(), socket.getfqdn().lower()


def _host(item: str, text: str) -> Host:
    match = _ITEM.fullmatch(item)
    if match is None:
        raise ClusterConfigError(
            "Hosts must have the form 'node1:2,node2:2', with an IPv6 address in brackets. "
            f"Received: {quoted(item)} in {quoted(text)}. Write the name, ':' and the number of "
            "the host's workers."
        )
    name = match["host"].removeprefix("[").removesuffix("]")
    return Host(name, int(match["slots"] or 1), match["user"])


def _apply_options(host: Host, options: Sequence[str], place: str) -> Host:
    """Returns a host with options such as `slots=4 max_slots=8` (or `max-slots=8`) applied."""
    numbers: dict[str, int] = {}
    for option in options:
        key, _, value = option.replace("-", "_").partition("=")
        if key not in ("slots", "max_slots") or not re.fullmatch(r"[0-9]{1,9}", value):
            raise ClusterConfigError(
                "A line of a hostfile must be 'host', 'host:N' or 'host slots=N max_slots=M'. "
                f"Received: {quoted(option)} ({place}). Remove it."
            )
        numbers[key] = int(value)
    slots = numbers.get("slots", host.slots)
    if slots > numbers.get("max_slots", slots):
        raise ClusterConfigError(
            f"slots cannot exceed max_slots. Received: slots={slots} "
            f"max_slots={numbers['max_slots']} ({place}). Correct one of them."
        )
    return replace(host, slots=slots)


def _merge_slots(hosts: Iterable[Host]) -> list[Host]:
    merged: dict[str, Host] = {}
    for host in hosts:
        earlier = merged.get(host.name)
        if earlier is not None:
            slots = earlier.slots + host.slots
            host = Host(host.name, slots, host.user or earlier.user)
        merged[host.name] = host
    result = list(merged.values())
    total = sum(host.slots for host in result)
    if total > _MOST_SLOTS:
        raise ClusterConfigError(
            f"All hosts together cannot have more than {_MOST_SLOTS} slots. Received: {total} "
            "slots. Request fewer slots."
        )
    if len(result) > 1 and any(host.is_loopback for host in result):
        raise _unreachable(result)
    return result


def check_reachable(hosts: Sequence[Host]) -> None:
    """Checks that loopback names are not mixed with names of other hosts.

    Raises:
      ClusterConfigError: if loopback names are mixed with names of other hosts.
    """
    if len({host.is_loopback for host in hosts}) > 1:
        raise _unreachable(hosts)


def _unreachable(hosts: Sequence[Host]) -> ClusterConfigError:
    return ClusterConfigError(
        "Each host of a list must have a name by which all others can reach it. Received: "
        f"{quoted([host.name for host in hosts])}. Replace the loopback name with this machine's "
        "name in the network."
    )
