"""Checks whether the addresses of a cluster can be reached from this machine."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable
from typing import NamedTuple

from tf_config.address import Address

_AT_ONCE = 64


class Reached(NamedTuple):
    """The result of one attempt to connect."""

    state: str  # "taken", "closed" or "unreachable"
    reason: str


def connect(addresses: Iterable[Address], timeout: float) -> dict[Address, Reached]:
    """Returns the result of connecting to each address; many are tried at once.

    `taken` means that something listens there already. `closed` means that the host answers but
    nothing listens, as it should be before a job starts. `unreachable` is anything else.
    """
    left = list(addresses)
    found: dict[Address, Reached] = {}
    # Not a thread pool: it is shut down when a script ends, while errors are still explained.
    while left:
        threads = [
            threading.Thread(target=_try_into, args=(found, address, timeout), daemon=True)
            for address in left[:_AT_ONCE]
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        del left[:_AT_ONCE]
    return found


def _try_into(found: dict[Address, Reached], address: Address, timeout: float) -> None:
    found[address] = _try(address, timeout)


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
