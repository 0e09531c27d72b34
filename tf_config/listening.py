"""Where a server listens, for others to reach it at an address of the cluster."""

from __future__ import annotations

import socket
from ipaddress import ip_address


def listening_hosts(host: str) -> tuple[tuple[int, str], ...]:
    """Returns the address families and hosts to listen at, the best one first.

    The last one is all addresses of this machine: behind address translation the name that others
    use is not one of this machine's, and a pod's name is known some seconds after its start. It is
    the only one where a machine takes its own name for a loopback address, as Debian's do: nobody
    else reaches it there.

    >>> listening_hosts("127.0.0.1") == ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET, ""))
    True

    Args:
      host: a name or an IP address of this machine, as the cluster has it.
    """
    everywhere = (socket.AF_INET6, "::") if ":" in host else (socket.AF_INET, "")
    if _is_loopback_to_itself(host):
        return (everywhere,)
    return (everywhere[0], host), everywhere


def _is_loopback_to_itself(host: str) -> bool:
    """Returns whether a name that others know stands for this machine's loopback address here."""
    if host.rstrip(".").lower() == "localhost":
        return False
    try:
        ip_address(host.partition("%")[0])
        return False  # it says itself which address it is
    except ValueError:
        pass
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return False
    return bool(found) and all(ip_address(str(each)).is_loopback for each in found)
