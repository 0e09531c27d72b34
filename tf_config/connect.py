"""Whether the addresses of a cluster can be reached from here."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from tf_config.address import Address


class Reached(NamedTuple):
    """What came of one attempt."""

    state: str  # "taken", "closed" or "unreachable"
    reason: str


def connect(addresses: Iterable[Address], timeout: float) -> dict[Address, Reached]:
    """Returns what each address answers: all are tried at once.

    `taken` means that something listens there already, `closed` that the host is there and
    nobody listens, which is right before a job starts, `unreachable` anything else.
    """
    addresses = list(addresses)
    with ThreadPoolExecutor(max_workers=64) as pool:
        return dict(zip(addresses, pool.map(lambda a: _try(a, timeout), addresses), strict=True))


def _try(address: Address, timeout: float) -> Reached:
    try:
        with socket.create_connection((address.host, address.port), timeout):
            return Reached("taken", "something listens there")
    except ConnectionRefusedError:
        return Reached("closed", "the host is there, nobody listens yet")
    except TimeoutError:
        return Reached("unreachable", f"no answer in {timeout:g} s")
    except OSError as error:
        return Reached("unreachable", error.strerror or str(error))
