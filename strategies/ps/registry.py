"""The registry of all variables on the servers."""

from __future__ import annotations

import itertools
import math
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.collectives.startup.waiting import wait_until
from strategies.compat.tensorflow import ResourceVariable
from strategies.ps.connection import ServerConnection, ServerGroup
from strategies.ps.placement import Placement, Slice, report
from strategies.ps.row_log import RowLog, has_row_log

# Characters that TensorFlow does not allow in names.
_NOT_IN_NAMES = r"[^A-Za-z0-9_.\\/>-]"
_POLL_SECONDS = 0.02
# TensorFlow processes a whole graph, and sends all of its functions, whenever new operations in it
# run: with all variables in one graph, the time to create n of them was proportional to n * n.
_VARIABLES_OF_A_CONNECTION = 8


@dataclass(eq=False)
class RemoteVariable:
    """A variable on the servers.

    Attributes:
      name: a unique name, the same on all workers.
      path: the names of the variable's layers and its own name, for the user.
      shape: the variable's shape.
      dtype: the variable's dtype.
      slices: the variable's rows on the servers. A counter has one slice per server, a copy of it.
      parts: for each slice, the TensorFlow variable in its server's graph.
      is_new: whether this worker set the initial value.
      io: for each server, the connection that reads and writes this variable alone.
      has_logs: whether the servers log which rows change.
      is_counter: whether each server holds a copy of the whole variable.
      logs: for each slice, the log of the rows that changed; empty if there are no logs.
    """

    name: str
    path: str
    shape: tuple[int, ...]
    dtype: tf.DType
    slices: tuple[Slice, ...]
    is_counter: bool = False
    is_new: bool = False
    parts: list[ResourceVariable] = field(default_factory=list)
    io: Sequence[ServerConnection] = ()
    has_logs: bool = False
    logs: list[RowLog] = field(default_factory=list)

    def slices_on(self, server: int) -> list[int]:
        """Returns the numbers of the slices that a server holds."""
        return [number for number, part in enumerate(self.slices) if part.server == server]

    def rows(self, value: Any, number: int) -> Any:
        """Returns the rows of a slice from a value of the variable's shape."""
        part = self.slices[number]
        return value[part.start : part.stop] if self.shape else value

    def shape_of(self, number: int) -> tuple[int, ...]:
        """Returns the shape of a slice."""
        part = self.slices[number]
        return (part.stop - part.start, *self.shape[1:]) if self.shape else ()


class VariableRegistry:
    """All variables on the servers in the order of their creation, the same on all workers.

    Args:
      servers: the servers that hold the variables.
      placement: assigns new variables to servers.
      timeout: the number of seconds to wait for the first worker's initial value.
    """

    def __init__(self, servers: ServerGroup, placement: Placement, timeout: float):
        self._servers = servers
        self._io: Sequence[ServerConnection] = ()
        self._readers: dict[Any, ServerConnection] = {}
        self._placement = placement
        self._timeout = timeout
        self._lock = threading.Lock()
        self.variables: list[RemoteVariable] = []
        self._names = itertools.count()

    def new_name(self, what: str) -> str:
        """Returns a new name for an object other than a variable, the same on all workers."""
        return f"{what}/{next(self._names)}"

    def add(
        self,
        name: str,
        shape: Sequence[int],
        dtype: tf.DType,
        initial: Callable[[], Any],
        beside: RemoteVariable | None = None,
        is_counter: bool = False,
        path: str | None = None,
        is_logged: bool = False,
    ) -> RemoteVariable:
        """Creates a variable on the servers.

        The first worker sets the initial value, and the other workers wait for it. A variable that
        already has a value, because this worker started late or was restarted, keeps it.

        Args:
          name: the variable's name, given by the user.
          shape: the variable's shape.
          dtype: the variable's dtype.
          initial: returns the initial value.
          beside: a variable of the same shape, next to whose slices the slices are placed.
          is_counter: whether each server holds a copy of the whole variable.
          path: the path used for the placement and in messages; None means `name`.
          is_logged: whether the servers log which rows change, if there are many.

        Raises:
          TimeoutError: if the first worker does not set the initial value in time.
        """
        with self._lock:
            unique = f"{len(self.variables)}/{re.sub(_NOT_IN_NAMES, '_', name)}"
            if beside is not None:
                slices = beside.slices
                self._placement.add_load(slices, shape, dtype.size)
            elif is_counter:
                slices = tuple(Slice(server.number, 0, 1) for server in self._servers.servers)
            else:
                slices = self._placement.place(path or name, shape, dtype.size)
            variable = RemoteVariable(unique, path or name, tuple(shape), dtype, slices, is_counter)
            variable.has_logs = is_logged and has_row_log(variable.shape)
            if len(self.variables) % _VARIABLES_OF_A_CONNECTION == 0:
                self._io = [server.new_connection() for server in self._servers.servers]
            variable.io = self._io
            self.variables.append(variable)
        for number, part in enumerate(slices):
            server = self._servers.servers[part.server]
            variable.parts.append(_part(variable, number, server))
            variable.logs += _logs(variable, number, server)
        self._initialize(variable, initial)
        return variable

    def _initialize(self, variable: RemoteVariable, initial: Callable[[], Any]) -> None:
        if self._is_initialized(variable):
            return
        if self._servers.rank == 0:
            # No worker updates a variable before it has a value, so no lock is needed.
            self._write(variable, np.asarray(initial()), is_locked=False)
            variable.is_new = True
            return
        wait_until(
            lambda: self._is_initialized(variable),
            lambda: f"the first worker's {variable.path}",
            lambda _: (
                f"The first worker must initialize each variable within {self._timeout:g} s. "
                f"Received: no initial value for {variable.path!r}. Check that the first worker is "
                "running, and that all workers create the same variables in the same order, with "
                "the same names."
            ),
            self._timeout,
            poll_seconds=_POLL_SECONDS,
        )

    def _is_initialized(self, variable: RemoteVariable) -> bool:
        def query(server: ServerConnection) -> bool:
            numbers = variable.slices_on(server.number)
            if not numbers:
                return True
            connection = variable.io[server.number]
            flags = connection.build_once(
                lambda: [_part(variable, n, connection).is_initialized() for n in numbers]
            )
            return all(connection.run(flags, idempotent=True))

        return all(self._servers.each(query))

    def write(self, variable: RemoteVariable, value: Any) -> None:
        """Assigns a value to a variable on all of its servers."""
        self._write(variable, np.asarray(value), is_locked=True)

    def _write(self, variable: RemoteVariable, value: np.ndarray, is_locked: bool) -> None:
        def assign(server: ServerConnection) -> None:
            numbers = variable.slices_on(server.number)
            if numbers:
                connection = variable.io[server.number]
                feeds, assignment = connection.build_once(
                    lambda: _assignment(variable, connection, is_locked)
                )
                parts = [value if variable.is_counter else variable.rows(value, n) for n in numbers]
                connection.run(assignment, dict(zip(feeds, parts, strict=True)))

        self._servers.each(assign)

    def read(self, variables: Sequence[RemoteVariable]) -> list[np.ndarray]:
        """Returns the current values of variables, read atomically from each server."""
        return self._read(list(variables), is_locked=True)

    def read_slices(self, variable: RemoteVariable) -> np.ndarray:
        """Returns the current value of a variable, of which each slice is read atomically.

        The first call for a variable is faster than that of `read`, because it builds no function.
        """
        return self._read([variable], is_locked=False)[0]

    def read_counter(self, variable: RemoteVariable, server: ServerConnection) -> np.ndarray:
        """Returns a server's own copy of a counter."""
        connection, (number,) = variable.io[server.number], variable.slices_on(server.number)
        value = connection.build_once(lambda: _part(variable, number, connection).read_value())
        return np.asarray(connection.run(value, idempotent=True))

    def _read(self, variables: list[RemoteVariable], is_locked: bool) -> list[np.ndarray]:

        def read_from(server: ServerConnection) -> dict[tuple[int, int], np.ndarray]:
            keys = [
                (n, number)
                for n, one in enumerate(variables)
                for number in (
                    one.slices_on(server.number)[:1]
                    if one.is_counter
                    else one.slices_on(server.number)
                )
            ]
            if not keys:
                return {}
            parts = [(variables[n], number) for n, number in keys]
            connection = self._reader(server, parts)

            def values() -> list[tf.Tensor]:
                return [_part(*part, connection).read_value() for part in parts]

            results = connection.build_once(
                lambda: connection.locked(values, changes=False)[1] if is_locked else values()
            )
            return dict(zip(keys, connection.run(results, idempotent=True), strict=True))

        arrays: dict[tuple[int, int], np.ndarray] = {}
        for results in self._servers.each(read_from):
            arrays.update(results)
        return [self._assemble(one, n, arrays) for n, one in enumerate(variables)]

    def _reader(
        self, server: ServerConnection, parts: Sequence[tuple[RemoteVariable, int]]
    ) -> ServerConnection:
        """Returns the connection that reads slices of one server together."""
        own = parts[0][0].io[server.number]
        if all(one.io[server.number] is own for one, _ in parts):
            return own
        key = tuple(parts)
        with self._lock:
            if (server.number, key) not in self._readers:
                self._readers[server.number, key] = server.new_connection()
            return self._readers[server.number, key]

    def _assemble(
        self, variable: RemoteVariable, n: int, arrays: dict[tuple[int, int], np.ndarray]
    ) -> np.ndarray:
        if variable.is_counter or not variable.shape:
            return np.asarray(arrays[n, 0])
        return np.concatenate([arrays[n, number] for number in range(len(variable.slices))])

    def describe_contents(self) -> dict[int, list[tuple[str, int]]]:
        """Returns the variables or slices that each server holds, and their sizes in bytes."""
        contents: dict[int, list[tuple[str, int]]] = {
            server.number: [] for server in self._servers.servers
        }
        for one in self.variables:
            for number, part in enumerate(one.slices if not one.is_counter else ()):
                size = math.prod(one.shape_of(number)) * one.dtype.size
                rows = f" rows {part.start}-{part.stop - 1}" if len(one.slices) > 1 else ""
                contents[part.server].append((f"{one.path}{rows}", size))
        return contents

    def report(self) -> str:
        """Returns a table of the placement and the load of the servers."""
        placed = [
            (one.path, one.shape, one.dtype.size, one.slices)
            for one in self.variables
            if not one.is_counter
        ]
        return report(placed, len(self._servers))


def _part(variable: RemoteVariable, number: int, server: ServerConnection) -> ResourceVariable:
    """Returns a slice of a variable in the graph of a connection to its server."""

    def create() -> ResourceVariable:
        shape = variable.shape_of(number) if not variable.is_counter else variable.shape
        return ResourceVariable(
            lambda: tf.zeros(shape, variable.dtype),
            name=_name_on_server(variable, number),
            trainable=False,
            dtype=variable.dtype,
        )

    return server.build_once(create)


def _logs(variable: RemoteVariable, number: int, server: ServerConnection) -> list[RowLog]:
    """Returns the log of a slice, or nothing if it has none, in the graph of a connection."""
    if not variable.has_logs:
        return []
    name, rows = _name_on_server(variable, number), variable.shape_of(number)[0]
    return [server.build_once(lambda: RowLog(name, rows))]


def _name_on_server(variable: RemoteVariable, number: int) -> str:
    # TensorFlow gives a variable on the server the name that it has in the graph.
    return f"variables/{variable.name}/{number}"


def _assignment(
    variable: RemoteVariable, server: ServerConnection, is_locked: bool
) -> tuple[list[Any], tf.Operation]:
    """Adds an assignment of a variable's slices on a server; returns placeholders and operation."""
    numbers = variable.slices_on(server.number)
    parts = [_part(variable, number, server) for number in numbers]
    logs = [log for number in numbers for log in _logs(variable, number, server)]
    feeds = [tf.compat.v1.placeholder(part.dtype, part.shape) for part in parts]

    def assign() -> list[tf.Operation]:
        pairs = zip(parts, feeds, strict=True)
        return [part.assign(feed, read_value=False) for part, feed in pairs]

    def assign_and_log() -> list[tf.Tensor]:
        assign()
        for log in logs:
            log.add_all()
        return []

    if not is_locked:
        # Other workers use the logs as soon as the slices have values.
        with tf.control_dependencies([operation for log in logs for operation in log.clear()]):
            return feeds, tf.group(*assign())
    assignment, _ = server.locked(assign_and_log)
    return feeds, assignment
