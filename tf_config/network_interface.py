"""The network addresses of this machine."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
from ipaddress import IPv6Address
from pathlib import Path

from tf_config.errors import ClusterConfigError, quoted

_SIOCGIFADDR = 0x8915  # linux/sockios.h
# An address reserved for documentation. Connecting a UDP socket to it sends nothing.
_ELSEWHERE = ("192.0.2.1", 9)
_IPV6 = Path("/proc/net/if_inet6")


def address_of(interface: str) -> str:
    """Returns the IPv4 address of a network interface.

    >>> address_of("lo")
    '127.0.0.1'

    Raises:
      ClusterConfigError: if the interface does not exist or has no IPv4 address.
    """
    check_interface(interface)
    try:
        return _address_of(interface)
    except OSError:
        raise ClusterConfigError(
            "--interface must name a network interface with an IPv4 address. Received: "
            f"{quoted(interface)}, which has none. See 'ip address'."
        ) from None


def interface_of(host: str) -> str | None:
    """Returns the network interface that has the address of `host`; None if there is none.

    >>> interface_of("localhost")
    'lo'
    """
    try:
        addresses = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except OSError:
        return None
    for address, name in _own_addresses():
        if address in addresses:
            return name
    return None


def own_address(host: str | None = None) -> str:
    """Returns the address at which other machines can most likely reach this machine.

    This is the address from which the host is reached, if one is given and is another machine. Else
    it is the address of the default route or, without one, that of this machine's name.
    """
    others = [_ELSEWHERE] if host is None else [(host, _ELSEWHERE[1]), _ELSEWHERE]
    for other in others:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(other)  # sends nothing
                found = str(probe.getsockname()[0])
            except OSError:
                continue
        if not found.startswith("127."):
            return found
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"


def check_interface(interface: str | None) -> None:
    """Checks that a network interface exists, unless it is None.

    Raises:
      ClusterConfigError: if the interface does not exist.
    """
    names = [name for _, name in socket.if_nameindex()]
    if interface is not None and interface not in names:
        raise ClusterConfigError(
            f"--interface must name a network interface of this machine ({', '.join(names)}). "
            f"Received: {quoted(interface)}. See 'ip link'."
        )


def _address_of(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", interface.encode()[:15])
        return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])


def _own_addresses() -> list[tuple[str, str]]:
    """Returns the addresses of this machine, each with the name of its interface."""
    addresses = []
    for _, name in socket.if_nameindex():
        with contextlib.suppress(OSError):
            addresses.append((_address_of(name), name))
    with contextlib.suppress(OSError):
        for line in _IPV6.read_text().splitlines():
            digits, *_, name = line.split()
            addresses.append((str(IPv6Address(int(digits, 16))), name))
    return addresses
