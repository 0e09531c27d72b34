"""Memory that processes of one host share, without a name that could be left behind.

A block is a file without a path (memfd_create): other processes of the same user open it by the
number that its owner gives it, and the kernel frees it with the last process that has it open,
however that ends. Its size is virtual: a page takes memory when it is first written.
"""

from __future__ import annotations

import mmap
import os
import platform
import select
import sys
from pathlib import Path

from absl import logging

_VIRTUAL_BYTES = 1 << 46
# Stores become visible to other cores in their order; elsewhere that takes fences, which Python
# does not have.
_ORDERED_STORES = ("x86_64", "AMD64")


def is_supported() -> bool:
    """Returns whether this machine and Python can share memory in this way."""
    has_calls = hasattr(os, "memfd_create") and hasattr(os, "pidfd_open")
    return sys.platform == "linux" and platform.machine() in _ORDERED_STORES and has_calls


def host_identity() -> bytes:
    """Returns what is the same in processes that can open each other's memory, and no others.

    That is the running kernel, the namespace of process numbers (a container has its own) and
    the user.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')} {os.geteuid()}".encode()


class OwnMemory:
    """A block of this process, which others may open.

    Attributes:
      number: what they open it by, together with this process's number.
    """

    def __init__(self) -> None:
        self.number = os.memfd_create("keras_strategies", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.number, _VIRTUAL_BYTES)
        except OSError:
            os.close(self.number)
            raise

    @classmethod
    def create(cls) -> OwnMemory | None:
        """Returns a block; None where this process may have none, as under `ulimit -f`."""
        try:
            return cls()
        except OSError as error:
            logging.warning("Workers share no memory: %s.", error)
            return None

    def map(self, start: int, length: int) -> mmap.mmap:
        """Returns a part of the block; `start` is a multiple of a page."""
        return mmap.mmap(self.number, length, offset=start)


class PeerMemory:
    """A block of another process of this host.

    Args:
      process: its number.
      number: the block's, in that process.

    Raises:
      OSError: if it cannot be opened.
    """

    def __init__(self, process: int, number: int):
        self._process = os.pidfd_open(process)
        self._ended = select.poll()
        self._ended.register(self._process, select.POLLIN)
        self._file = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)

    def map(self, start: int, length: int) -> mmap.mmap:
        """Returns a part of the block, to read; `start` is a multiple of a page."""
        return mmap.mmap(self._file, length, offset=start, prot=mmap.PROT_READ)

    def has_ended(self) -> bool:
        """Returns whether its process has ended."""
        return bool(self._ended.poll(0))
