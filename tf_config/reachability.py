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
    """Tries to connect to each address, many at the same time; returns the results.

    The state `taken` means that a process already listens on the address, and `closed` that the
    host answers but no process listens, as expected before a job starts. All else is `unreachable`.
    """
    left = list(addresses)
    results: dict[Address, Reached] = {}

    def try_to_connect(address: Address) -> None:
        results[address] = _try_to_connect(address, timeout)

    # Not a thread pool: at the end of a script, when errors are explained, pools are shut down.
    while left:
        threads = [
            threading.Thread(target=try_to_connect, args=(address,), daemon=True)
            for address in left[:_AT_ONCE]
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        del left[:_AT_ONCE]
    return results


def _try_to_connect(address: Address, timeout: float) -> Reached:
    try:
        with socket.create_connection((address.host, address.port), timeout):
            return Reached("taken", "a process already listens on this address")
    except ConnectionRefusedError:
        return Reached("closed", "the host answers; no process listens on this port yet")
    except TimeoutError:
        return Reached("unreachable", f"no answer in {timeout:g} s")
    except OSError as error:
        return Reached("unreachable", error.strerror or str(error))
