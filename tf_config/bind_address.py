"""The addresses that a server binds to, so that other machines reach it at its cluster address."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from ipaddress import ip_address
from typing import TypeVar

T = TypeVar("T")


def listening_hosts(host: str) -> tuple[tuple[int, str], ...]:
    """Returns the address families and hosts to listen on, in order of preference.

    The last entry stands for all addresses of this machine. It is needed behind network address
    translation, where this machine does not have the address that others use, and in a pod, whose
    name resolves only some seconds after its start. It is the only entry if this machine resolves
    its own name to a loopback address, as on Debian, because others cannot reach that address.

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
    """Binds to the first of `listening_hosts` that this machine has; returns the result of `bind`.

    Raises:
      OSError: if `bind` fails for another reason, such as a port in use.
    """
    candidates = [candidate for _, candidate in listening_hosts(host)]
    for candidate in candidates[:-1]:
        try:
            return bind(candidate)
        except OSError as error:
            if not isinstance(error, socket.gaierror) and error.errno != errno.EADDRNOTAVAIL:
                raise
    return bind(candidates[-1])


def _is_loopback_to_itself(host: str) -> bool:
    """Returns whether a name that other machines use is a loopback address on this machine."""
    if host.rstrip(".").lower() == "localhost":
        return False
    try:
        ip_address(host.partition("%")[0])
        return False  # an IP address
    except ValueError:
        pass
    try:
        addresses = {i[4][0] for i in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return False
    return bool(addresses) and all(ip_address(str(each)).is_loopback for each in addresses)
