"""Observes from outside whether a task's process uses TensorFlow and joins the others."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tf_config.address import Address

_PROC = Path("/proc")
_LISTENS = "0A"  # TCP_LISTEN, linux/tcp_states.h
_TENSORFLOW, _MPI = "libtensorflow_framework.so", "/libmpi.so"


class ProcessProbe:
    """Observations of a task's process and of all processes that it starts.

    An observation stays true even if the process that caused it has ended.

    TensorFlow is detected among the libraries that a process has loaded. Its own server, which all
    multi-worker strategies of stock `tf.distribute` start, is detected by the task's port. See
    [Note: unsynchronized tasks] in `sidecar.py`.

    Args:
      pid: the process ID.
      address: the address that the task listens on when it joins the others.

    Attributes:
      uses_tensorflow: whether TensorFlow has been loaded.
      has_listened: whether a process has listened on the task's port.
      has_mpi: whether MPI has been loaded.
    """

    def __init__(self, pid: int, address: Address):
        self.uses_tensorflow = False
        self.has_listened = False
        self.has_mpi = False
        self._pid = pid
        self._port = address.port

    def sample(self) -> None:
        """Updates the attributes with the current state."""
        for pid in _process_tree(self._pid):
            libraries = _mapped_files(pid)
            self.uses_tensorflow = self.uses_tensorflow or _TENSORFLOW in libraries
            self.has_mpi = self.has_mpi or _MPI in libraries
        self.has_listened = self.has_listened or self._port in _listening_ports(self._pid)


def _process_tree(pid: int) -> list[int]:
    """Returns the IDs of a process and of all living processes that it started."""
    processes = [pid]
    for process in processes:  # the list grows during the iteration
        with contextlib.suppress(OSError):
            for thread in os.listdir(_PROC / str(process) / "task"):
                children = _PROC / str(process) / "task" / thread / "children"
                processes += map(int, children.read_text().split())
    return processes


def _mapped_files(pid: int) -> str:
    """Returns text that contains the files that a process has mapped."""
    try:
        return (_PROC / str(pid) / "maps").read_text(errors="replace")
    except OSError:
        return ""


def _listening_ports(pid: int) -> set[int]:
    """Returns the ports on which any process listens, as seen by a process."""
    ports = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (_PROC / str(pid) / "net" / name).read_text().splitlines()[1:]:
                _, local, _, state, *_ = line.split()
                if state == _LISTENS:
                    ports.add(int(local.rpartition(":")[2], 16))
    return ports
