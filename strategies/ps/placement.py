"""Placement of variables and their slices on servers."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strategies.utils.argument_checks import check_whole_number
from strategies.utils.partitioning import part_bounds

Chooser = Callable[[str, tuple[int, ...], int], int]
MIN_SLICE_SIZE = 8192
_METHODS = ("size", "round_robin", "hash")


@dataclass(frozen=True)
class Slice:
    """A slice of a variable: consecutive rows and the server that holds them.

    Attributes:
      server: the number of the server.
      start: the first row.
      stop: the row after the last one. A scalar variable has one row.
    """

    server: int
    start: int
    stop: int


class Placement:
    """Assigns variables to servers.

    >>> placement = Placement(2, min_slice_size=8)
    >>> placement.place("bias", (4,))
    (Slice(server=0, start=0, stop=4),)
    >>> placement.place("kernel", (5, 4))
    (Slice(server=1, start=0, stop=3), Slice(server=0, start=3, stop=5))

    A variable of n elements has n // min_slice_size slices, but at least one and at most one per
    server or row. Slices consist of whole rows; their numbers of rows differ by at most one. The
    method chooses the server of each slice:

    * "size": the server that holds the fewest bytes so far, slot variables included; the one with
      the lowest number if there are several. Slices of one variable go to different servers. This
      is Graham's list scheduling (SIAM J. Appl. Math. 17(2), 1969) in the order of creation, which
      is the same on all workers. The fullest server exceeds the mean by less than one slice.
    * "round_robin": the server after that of the previous slice;
    * "hash": the server given by the CRC-32 of the variable's path, which is the same in every
      process; the other slices go to the servers after it;
    * a function of the variable's path, its shape and the number of servers: the server that it
      returns; the other slices go to the servers after it.

    The path is that of Keras: the names of the layers that contain the variable and its own name,
    such as "sequential/dense_1/kernel".

    Args:
      servers: the number of servers.
      method: "size", "round_robin", "hash" or a function.
      min_slice_size: the number of elements above. None keeps variables whole.

    Raises:
      ValueError: if an argument is invalid.
    """

    def __init__(
        self,
        servers: int,
        method: str | Chooser = "size",
        min_slice_size: int | None = MIN_SLICE_SIZE,
    ):
        if not callable(method) and method not in _METHODS:
            raise ValueError(
                f"placement must be one of {', '.join(map(repr, _METHODS))}, or a function of a "
                f"variable's path, its shape and the number of servers. Received: {method!r}."
            )
        if min_slice_size is not None:
            check_whole_number(
                "min_slice_size", min_slice_size, 1, "None keeps all variables whole."
            )
        self._servers = servers
        self._method = method
        self._min_slice_size = min_slice_size
        self._next = 0
        self._bytes = [0] * servers

    def place(self, path: str, shape: Sequence[int], element_size: int = 4) -> tuple[Slice, ...]:
        """Assigns the slices of a variable to servers; returns the slices in the order of rows.

        Args:
          path: the variable's path.
          shape: the variable's shape.
          element_size: the number of bytes of an element.

        Raises:
          ValueError: if the user's function does not return the number of a server.
        """
        shape = tuple(shape)
        rows = shape[0] if shape else 1
        count = 1
        if self._min_slice_size is not None:
            count = max(1, min(self._servers, math.prod(shape) // self._min_slice_size, rows))
        slices = tuple(
            Slice(server, *part_bounds(rows, number, count))
            for number, server in enumerate(self._choose_servers(path, shape, count))
        )
        self.add_load(slices, shape, element_size)
        return slices

    def add_load(self, slices: Sequence[Slice], shape: Sequence[int], element_size: int) -> None:
        """Adds the bytes of a variable, such as a slot variable, to those that servers hold.

        Args:
          slices: the slices of the variable.
          shape: the variable's shape.
          element_size: the number of bytes of an element.
        """
        for part, size in zip(slices, _bytes_of(slices, shape, element_size), strict=True):
            self._bytes[part.server] += size

    def _choose_servers(self, path: str, shape: tuple[int, ...], count: int) -> Sequence[int]:
        """Returns the server of each slice of a variable."""
        if self._method == "size":
            # The first slices have more rows. Every worker adds up the same integers in the same
            # order and breaks ties by number, so all of them choose the same servers.
            return sorted(range(self._servers), key=lambda server: self._bytes[server])[:count]
        if self._method == "round_robin":
            first = self._next
            self._next = (self._next + count) % self._servers
        elif self._method == "hash":
            first = zlib.crc32(path.encode()) % self._servers
        else:
            first = self._method(path, shape, self._servers)  # type: ignore[operator]
            if not isinstance(first, int) or not 0 <= first < self._servers:
                raise ValueError(
                    f"A placement function must return the number of a server, 0 to "
                    f"{self._servers - 1}. Received: {first!r} for {path!r}."
                )
        return [(first + number) % self._servers for number in range(count)]


def _bytes_of(slices: Sequence[Slice], shape: Sequence[int], element_size: int) -> list[int]:
    """Returns the number of bytes of each slice of a variable."""
    row = math.prod(shape[1:]) * element_size
    return [(part.stop - part.start) * row for part in slices]


def report(placed: Sequence[tuple[str, Sequence[int], int, Sequence[Slice]]], servers: int) -> str:
    """Returns a table of the placement and the load of the servers.

    >>> slices = Placement(2, min_slice_size=8).place("kernel", (5, 4))
    >>> print(report([("kernel", (5, 4), 4, slices)], 2))
    kernel (5, 4): rows 0-2 on ps 0, rows 3-4 on ps 1
    ps 0: 48 bytes
    ps 1: 32 bytes
    the fullest server holds 1.20 times the mean

    Args:
      placed: the path, shape, bytes per element and slices of each variable.
      servers: the number of servers.
    """
    lines, load = [], [0] * servers
    for path, shape, size, slices in placed:
        for part, held in zip(slices, _bytes_of(slices, shape, size), strict=True):
            load[part.server] += held
        where = [f"rows {part.start}-{part.stop - 1} on ps {part.server}" for part in slices]
        whole = f"on ps {slices[0].server}"
        lines.append(f"{path} {tuple(shape)}: {whole if len(slices) == 1 else ', '.join(where)}")
    lines += [f"ps {number}: {size} bytes" for number, size in enumerate(load)]
    mean = sum(load) / servers
    lines.append(f"the fullest server holds {max(load) / mean if mean else 1:.2f} times the mean")
    return "\n".join(lines)
