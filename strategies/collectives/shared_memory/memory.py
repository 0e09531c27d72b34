"""Memory that processes of one host share, without a name that could be left behind.

A block is a file without a path (memfd_create). Other processes of the same user open it by the
owner's file descriptor, and the kernel frees it when the last process that has it open ends, even
if that process is killed. Its size is virtual: a page takes memory only once it is written.
"""

from __future__ import annotations

import mmap
import os
import platform
import select
import sys
import weakref
from pathlib import Path

from absl import logging

_VIRTUAL_BYTES = 1 << 46
# On these machines, stores become visible to other cores in program order. Other machines need
# memory fences, which Python does not have; see [Note: the shared-memory protocol] in channel.py.
_ORDERED_STORES = ("x86_64", "AMD64")


def is_supported() -> bool:
    """Returns whether this machine and Python can share memory in this way."""
    has_calls = hasattr(os, "memfd_create") and hasattr(os, "pidfd_open")
    return sys.platform == "linux" and platform.machine() in _ORDERED_STORES and has_calls


def host_identity() -> bytes:
    """Returns an identifier that two processes have in common if they can open each other's memory.

    It consists of the kernel's boot id, the PID namespace (each container has its own) and the
    user.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')} {os.geteuid()}".encode()


class OwnMemory:
    """A block of memory of this process, which other processes may open.

    Attributes:
      number: the file descriptor. Other processes open the block by it and the process ID.
    """

    def __init__(self) -> None:
        self.number = os.memfd_create("keras_strategies", os.MFD_CLOEXEC)
        _close_with(self, self.number)
        os.ftruncate(self.number, _VIRTUAL_BYTES)

    @classmethod
    def create(cls) -> OwnMemory | None:
        """Returns a block; None if it cannot be created, for example because of `ulimit -f`."""
        try:
            return cls()
        except OSError as error:
            logging.warning("Workers cannot share memory: %s.", error)
            return None

    def map(self, start: int, length: int) -> mmap.mmap:
        """Returns a part of the block; `start` is a multiple of the page size."""
        return mmap.mmap(self.number, length, offset=start)


class PeerMemory:
    """A block of memory of another process of this host.

    Args:
      process: the ID of the other process.
      number: the block's file descriptor in that process.

    Raises:
      OSError: if the block cannot be opened.
    """

    def __init__(self, process: int, number: int):
        end = os.pidfd_open(process)
        _close_with(self, end)
        self._ended = select.poll()
        self._ended.register(end, select.POLLIN)
        self._file = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
        _close_with(self, self._file)

    def map(self, start: int, length: int) -> mmap.mmap:
        """Returns a part of the block for reading; `start` is a multiple of the page size."""
        return mmap.mmap(self._file, length, offset=start, prot=mmap.PROT_READ)

    def has_ended(self) -> bool:
        """Returns whether the other process has ended."""
        return bool(self._ended.poll(0))


def _close_with(memory: OwnMemory | PeerMemory, descriptor: int) -> None:
    """Closes a file descriptor when a block's object is deleted; parts that are mapped stay."""
    weakref.finalize(memory, os.close, descriptor).atexit = False
