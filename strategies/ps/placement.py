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

    * "round_robin": the server after that of the previous slice;
    * "hash": the server given by the CRC-32 of the variable's path, which is the same in every
      process; further slices go to the servers after it;
    * a function of the variable's path, its shape and the number of servers: the server that it
      returns; further slices go to the servers after it.

    The path is that of Keras: the names of the layers that contain the variable and its own name,
    such as "sequential/dense_1/kernel".

    Args:
      servers: the number of servers.
      method: "round_robin", "hash" or a function.
      min_slice_size: a number of elements, as above. None keeps variables whole.

    Raises:
      ValueError: if an argument is invalid.
    """

    def __init__(
        self,
        servers: int,
        method: str | Chooser = "round_robin",
        min_slice_size: int | None = MIN_SLICE_SIZE,
    ):
        if not callable(method) and method not in ("round_robin", "hash"):
            raise ValueError(
                "placement is 'round_robin', 'hash' or a function of a variable's path, its shape "
                f"and the number of servers. Received: {method!r}."
            )
        if min_slice_size is not None:
            check_whole_number(
                "min_slice_size", min_slice_size, 1, "None keeps all variables whole."
            )
        self._servers = servers
        self._method = method
        self._min_slice_size = min_slice_size
        self._next = 0

    def place(self, path: str, shape: Sequence[int]) -> tuple[Slice, ...]:
        """Assigns the slices of a variable to servers; returns the slices in the order of rows.

        Raises:
          ValueError: if the user's function does not return the number of a server.
        """
        shape = tuple(shape)
        rows = shape[0] if shape else 1
        count = 1
        if self._min_slice_size is not None:
            count = max(1, min(self._servers, math.prod(shape) // self._min_slice_size, rows))
        first = self._first(path, shape, count)
        return tuple(
            Slice((first + number) % self._servers, *part_bounds(rows, number, count))
            for number in range(count)
        )

    def _first(self, path: str, shape: tuple[int, ...], count: int) -> int:
        if self._method == "round_robin":
            first = self._next
            self._next = (self._next + count) % self._servers
            return first
        if self._method == "hash":
            return zlib.crc32(path.encode()) % self._servers
        chosen = self._method(path, shape, self._servers)  # type: ignore[operator]
        if not isinstance(chosen, int) or not 0 <= chosen < self._servers:
            raise ValueError(
                "A placement function must return the number of a server, from 0 to "
                f"{self._servers - 1}. Received: {chosen!r} for {path!r}."
            )
        return chosen


def report(placed: Sequence[tuple[str, Sequence[int], int, Sequence[Slice]]], servers: int) -> str:
    """Returns a table of the placement and the load of the servers.

    >>> slices = Placement(2, min_slice_size=8).place("kernel", (5, 4))
    >>> print(report([("kernel", (5, 4), 4, slices)], 2))
    kernel (5, 4): rows 0-2 on ps 0, rows 3-4 on ps 1
    ps 0: 48 bytes
    ps 1: 32 bytes
    the fullest holds 1.20 times the mean

    Args:
      placed: the path, shape, bytes per element and slices of each variable.
      servers: the number of servers.
    """
    lines, load = [], [0] * servers
    for path, shape, size, slices in placed:
        row = math.prod(shape[1:]) * size
        for part in slices:
            load[part.server] += (part.stop - part.start) * row
        where = [f"rows {part.start}-{part.stop - 1} on ps {part.server}" for part in slices]
        whole = f"on ps {slices[0].server}"
        lines.append(f"{path} {tuple(shape)}: {whole if len(slices) == 1 else ', '.join(where)}")
    lines += [f"ps {number}: {size} bytes" for number, size in enumerate(load)]
    mean = sum(load) / servers
    lines.append(f"the fullest holds {max(load) / mean if mean else 1:.2f} times the mean")
    return "\n".join(lines)
