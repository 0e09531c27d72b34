"""Sees from outside whether a task's process computes with TensorFlow and joins the others."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tf_config.address import Address

_PROC = Path("/proc")
_LISTENS = "0A"  # TCP_LISTEN, linux/tcp_states.h
_TENSORFLOW, _MPI = "libtensorflow_framework.so", "/libmpi.so"


class Witness:
    """What is to be seen of a task's process, and of all that it starts.

    TensorFlow is seen among the libraries that a process has loaded; that its own server runs, as
    all of stock `tf.distribute`'s strategies for several workers start one, at the task's port.

    Args:
      pid: the process.
      address: where the task listens when it joins the others.

    Attributes:
      computes: whether TensorFlow was loaded so far.
      listens: whether somebody listened at the task's port so far.
      has_mpi: whether MPI was loaded so far.
    """

    def __init__(self, pid: int, address: Address):
        self.computes = False
        self.listens = False
        self.has_mpi = False
        self._pid = pid
        self._port = address.port

    def look(self) -> None:
        """Looks at what there is now, beside what was there before."""
        for pid in _tree(self._pid):
            libraries = _maps(pid)
            self.computes = self.computes or _TENSORFLOW in libraries
            self.has_mpi = self.has_mpi or _MPI in libraries
        self.listens = self.listens or self._port in _listened(self._pid)


def _tree(pid: int) -> list[int]:
    """Returns a process and all that it started, as far as they live."""
    found = [pid]
    for process in found:
        with contextlib.suppress(OSError):
            for thread in os.listdir(_PROC / str(process) / "task"):
                children = _PROC / str(process) / "task" / thread / "children"
                found += map(int, children.read_text().split())
    return found


def _maps(pid: int) -> str:
    """Returns the files that a process has mapped, among other words."""
    try:
        return (_PROC / str(pid) / "maps").read_text(errors="replace")
    except OSError:
        return ""


def _listened(pid: int) -> set[int]:
    """Returns the ports on which somebody listens, as a process sees them."""
    ports = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (_PROC / str(pid) / "net" / name).read_text().splitlines()[1:]:
                _, local, _, state, *_ = line.split()
                if state == _LISTENS:
                    ports.add(int(local.rpartition(":")[2], 16))
    return ports
