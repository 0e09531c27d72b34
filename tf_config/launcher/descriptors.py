"""Waiting for file descriptors, of which a process may have any number open."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Sequence

Descriptor = int | socket.socket


def wait_for_descriptors(
    readable: Sequence[Descriptor],
    timeout: float | None,
    writable: Sequence[Descriptor] = (),
) -> set[Descriptor]:
    """Waits for one of several file descriptors; returns those that are ready.

    `select.select` raises ValueError for a descriptor above 1023, which a program with many open
    files reaches; this does not. A descriptor whose other end is closed is ready.

    Args:
      readable: descriptors that are ready as soon as they can be read.
      timeout: how long to wait, in seconds; None waits without a limit.
      writable: descriptors, none of them in `readable`, that are ready as soon as they can be
        written.
    """
    # Not DefaultSelector: epoll does not accept a regular file, which standard input may be.
    with selectors.PollSelector() as selector:
        for descriptor in readable:
            selector.register(descriptor, selectors.EVENT_READ, descriptor)
        for descriptor in writable:
            selector.register(descriptor, selectors.EVENT_WRITE, descriptor)
        return {key.data for key, _ in selector.select(timeout)}
