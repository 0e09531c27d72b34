"""Two hosts on one machine, with a wire between them that can be slow, lossy or cut; needs root.

Each host is a network namespace. The wire is this process: it reads Ethernet frames at one end and
writes them at the other, later or not at all, so that it works for every program and protocol.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import random
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tf_config.launcher.descriptors import wait_for_descriptors

_TUN = Path("/dev/net/tun")
_TUNSETIFF, _TAP_WITHOUT_HEADER = 0x400454CA, 0x0002 | 0x1000  # linux/if_tun.h
_FRAME_BYTES = 1 << 16


def missing() -> str | None:
    """Returns why two hosts cannot be made here; None if they can."""
    if os.geteuid() != 0:
        return "network namespaces are made by root"
    try:
        os.close(os.open(_TUN, os.O_RDWR))
        subprocess.run(["ip", "netns", "add", "ks-try"], check=True, capture_output=True)
        subprocess.run(["ip", "netns", "delete", "ks-try"], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no network namespaces or no {_TUN}: {error}"
    return None


class Wire:
    """Carries frames between two ends, in a thread.

    Attributes:
      delay: seconds that a frame takes.
      loss: the share of frames that is lost.
      is_cut: whether all are.
    """

    def __init__(self, ends: tuple[int, int], seed: int = 0):
        self.delay = self.loss = 0.0
        self.is_cut = False
        self._ends = ends
        self._random = random.Random(seed)
        self._flying: list[tuple[float, int, int, bytes]] = []
        self._count = 0
        self._stopped = False
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Carries nothing any more."""
        self._stopped = True
        self._thread.join()

    def _carry(self) -> None:
        while not self._stopped:
            wait = self._flying[0][0] - time.monotonic() if self._flying else 0.1
            for end in wait_for_descriptors(self._ends, min(max(wait, 0.0), 0.1)):
                self._send(os.read(end, _FRAME_BYTES), self._ends[end == self._ends[0]])
            while self._flying and self._flying[0][0] <= time.monotonic():
                _, _, end, frame = heapq.heappop(self._flying)
                with contextlib.suppress(OSError):  # the interface is down
                    os.write(end, frame)

    def _send(self, frame: bytes, end: int) -> None:
        if not self.is_cut and self._random.random() >= self.loss:
            self._count += 1
            arrival = time.monotonic() + self.delay
            heapq.heappush(self._flying, (arrival, self._count, end, frame))


class TwoHosts:
    """Two hosts and the wire between them; made by `made`.

    Attributes:
      names: of the hosts, which are those of their namespaces.
      addresses: theirs.
      wire: between them.
    """

    def __init__(self, names: tuple[str, str], addresses: tuple[str, str], wire: Wire):
        self.names, self.addresses, self.wire = names, addresses, wire

    def on(self, host: int) -> list[str]:
        """Returns what stands before a command that runs on a host."""
        return ["ip", "netns", "exec", self.names[host]]

    @classmethod
    @contextlib.contextmanager
    def made(cls) -> Iterator[TwoHosts]:
        """Makes two hosts, and removes them."""
        number = os.getpid()
        names = f"ks{number}c", f"ks{number}d"
        addresses = f"10.232.{number % 255}.1", f"10.232.{number % 255}.2"
        ends: list[int] = []
        try:
            for name, address in zip(names, addresses, strict=True):
                _ip("netns", "add", name)
                ends.append(_tap(name))
                _ip("link", "set", name, "netns", name)
                _ip("-n", name, "address", "add", f"{address}/24", "dev", name)
                for device in (name, "lo"):
                    _ip("-n", name, "link", "set", device, "up")
            wire = Wire((ends[0], ends[1]))
            try:
                yield cls(names, addresses, wire)
            finally:
                wire.stop()
        finally:
            for end in ends:
                os.close(end)
            for name in names:
                subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _tap(name: str) -> int:
    """Returns a descriptor of the frames of a new network interface."""
    end = os.open(_TUN, os.O_RDWR)
    fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TAP_WITHOUT_HEADER))
    return end
