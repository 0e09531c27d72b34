"""The address of a task: a host and a port."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from tf_config.errors import ClusterConfigError, quoted

_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_-]+)*\.?")
_ZONE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Address:
    """A host and a port, validated on construction.

    >>> Address.parse("node1:2222")
    Address(host='node1', port=2222)
    >>> str(Address.parse("[::1]:2222"))
    '[::1]:2222'

    Attributes:
      host: a host name, an IPv4 address, or an IPv6 address without brackets.
      port: a port number from 1 to 65535.
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: object) -> Address:
        """Returns the address given as `host:port` or `[ipv6]:port`.

        Raises:
          ClusterConfigError: if `text` is anything else.
        """
        rule = "An address must have the form 'host:port'"
        if not isinstance(text, str):
            raise ClusterConfigError(f"{rule}. Received: {quoted(text)}. Write it as a string.")
        if "://" in text:
            raise ClusterConfigError(
                f"{rule}, without a scheme. Received: {quoted(text)}. Remove everything up to "
                "'://'."
            )
        host, colon, port = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
            if not _is_ip(host, 6):
                raise ClusterConfigError(
                    f"{rule}, with an IPv6 address in the brackets. Received: {quoted(text)}. "
                    "Write for example '[::1]:2222'."
                )
        elif ":" in host:
            raise ClusterConfigError(
                f"{rule}, with an IPv6 address in brackets. Received: {quoted(text)}. Write for "
                "example '[::1]:2222'."
            )
        if not colon:
            raise ClusterConfigError(
                f"{rule}. Received: {quoted(text)}, which has no port. Add one, as in 'node1:2222'."
            )
        if not (port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535):
            raise ClusterConfigError(
                f"A port must be a number from 1 to 65535. Received: {quoted(text)}. Write for "
                "example 'node1:2222'."
            )
        if not (_is_ip(host, 6) or _HOST_NAME.fullmatch(host)):
            raise ClusterConfigError(
                f"{rule}, with a host name or an IP address. Received: {quoted(text)}. "
                "Write for example 'node1:2222'."
            )
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def endpoint(self) -> tuple[str, int]:
        """The normalized host and port; for example, 127.0.0.1 for `localhost`."""
        host = self.host.lower().rstrip(".")
        if _is_ip(host, 6):
            host = ipaddress.IPv6Address(host).compressed
        return ("127.0.0.1" if host == "localhost" else host, self.port)


def _is_ip(host: str, version: int) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    # Python accepts any text as the zone of an address (eth0 in fe80::1%eth0).
    _, percent, zone = host.partition("%")
    return address.version == version and (not percent or bool(_ZONE.fullmatch(zone)))
