"""The hosts on which a server listens, so that others reach it at an address of the cluster."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from ipaddress import ip_address
from typing import TypeVar

T = TypeVar("T")


def listening_hosts(host: str) -> tuple[tuple[int, str], ...]:
    """Returns the address families and hosts to listen on, the best one first.

    The last entry is all addresses of this machine: behind address translation, the name that
    others use is not an address of this machine, and a pod's name resolves only some seconds after
    its start. It is the only entry if this machine resolves its own name to a loopback address, as
    Debian does, because no other machine can reach that.

    >>> listening_hosts("127.0.0.1") == ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET, ""))
    True

    Args:
      host: the name or IP address of this machine in the cluster.
    """
    everywhere = (socket.AF_INET6, "::") if ":" in host else (socket.AF_INET, "")
    if _is_loopback_to_itself(host):
        return (everywhere,)
    return (everywhere[0], host), everywhere


def bind_first(host: str, bind: Callable[[str], T]) -> T:
    """Returns what `bind` returns for the best of the hosts to listen on that this machine has.

    Raises:
      OSError: if `bind` fails for another reason, such as a port in use.
    """
    places = [place for _, place in listening_hosts(host)]
    for place in places[:-1]:
        try:
            return bind(place)
        except OSError as error:
            if not isinstance(error, socket.gaierror) and error.errno != errno.EADDRNOTAVAIL:
                raise
    return bind(places[-1])


def _is_loopback_to_itself(host: str) -> bool:
    """Returns whether a name that others know resolves to a loopback address on this machine."""
    if host.rstrip(".").lower() == "localhost":
        return False
    try:
        ip_address(host.partition("%")[0])
        return False  # an IP address
    except ValueError:
        pass
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return False
    return bool(found) and all(ip_address(str(each)).is_loopback for each in found)
