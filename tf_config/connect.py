"""Whether the addresses of a cluster can be reached from here."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable
from typing import NamedTuple

from tf_config.address import Address

_AT_ONCE = 64


class Reached(NamedTuple):
    """What came of one attempt."""

    state: str  # "taken", "closed" or "unreachable"
    reason: str


def connect(addresses: Iterable[Address], timeout: float) -> dict[Address, Reached]:
    """Returns what each address answers: all are tried at once.

    `taken` means that something listens there already, `closed` that the host is there and
    nobody listens, which is right before a job starts, `unreachable` anything else.
    """
    left = list(addresses)
    found: dict[Address, Reached] = {}
    # Not a pool of threads, which is closed when a script has ended and its errors are explained.
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
