"""What the servers hold of each variable."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from strategies._tensorflow import ResourceVariable
from strategies.ps.client import Server, Servers
from strategies.ps.placement import Placement, Slice, report

# What TensorFlow takes in no name.
_NO_NAME = r"[^A-Za-z0-9_.\\/>-]"
_POLL_SECONDS = 0.02
_NAME_EVERY_SECONDS = 5.0


@dataclass(eq=False)
class RemoteVariable:
    """A variable on the servers.

    Attributes:
      name: the same on all workers, and no other variable's.
      path: its layers' names and its own, as users know it.
      shape: the variable's.
      dtype: the variable's.
      slices: its rows on the servers; for a counter one slice, which each server has a copy of.
      parts: for each slice the TensorFlow variable in its server's graph.
      again: the same variables in the graph of what is done to each by itself.
      is_counter: whether each server counts for itself, all alike.
    """

    name: str
    path: str
    shape: tuple[int, ...]
    dtype: tf.DType
    slices: tuple[Slice, ...]
    is_counter: bool = False
    parts: list[ResourceVariable] = field(default_factory=list)
    again: list[ResourceVariable] = field(default_factory=list)

    def here(self, server: int) -> list[int]:
        """Returns the numbers of the slices on a server."""
        return [number for number, part in enumerate(self.slices) if part.server == server]

    def rows(self, value: Any, number: int) -> Any:
        """Returns the rows of a value of the variable's shape that are in a slice."""
        part = self.slices[number]
        return value[part.start : part.stop] if self.shape else value

    def shape_of(self, number: int) -> tuple[int, ...]:
        """Returns the shape of a slice."""
        part = self.slices[number]
        return (part.stop - part.start, *self.shape[1:]) if self.shape else ()


class VariableRegistry:
    """All variables on the servers, by the order of their making, which all workers share.

    Args:
      servers: what holds them.
      placement: where new ones go.
      timeout: seconds to wait for the first worker's initial value.
    """

    def __init__(self, servers: Servers, placement: Placement, timeout: float):
        self._servers = servers
        # What is done to one variable does not send the functions that change all of them.
        self._apart = [server.apart() for server in servers.servers]
        self._placement = placement
        self._timeout = timeout
        self._lock = threading.Lock()
        self.held: list[RemoteVariable] = []
        self._names = itertools.count()

    def new_name(self, what: str) -> str:
        """Returns a name for what is no variable, the same on all workers."""
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
    ) -> RemoteVariable:
        """Puts a variable on the servers.

        The first worker gives its initial value; the others wait for that. What is there already,
        for this worker came late or again, stays as it is.

        Args:
          name: the user's.
          shape: the variable's.
          dtype: the variable's.
          initial: makes its first value.
          beside: another one of the same shape, whose slices it goes beside.
          is_counter: whether each server has a copy.
          path: tells where it goes, and what it is called in messages; None is its name.

        Raises:
          TimeoutError: if the first worker gives no value in time.
        """
        with self._lock:
            unique = f"{len(self.held)}/{re.sub(_NO_NAME, '_', name)}"
            if beside is not None:
                slices = beside.slices
            elif is_counter:
                slices = tuple(Slice(server.number, 0, 1) for server in self._servers.servers)
            else:
                slices = self._placement.place(path or name, shape)
            held = RemoteVariable(unique, path or name, tuple(shape), dtype, slices, is_counter)
            self.held.append(held)
        for number, part in enumerate(slices):
            held.parts.append(self._part(held, number, self._servers.servers[part.server]))
            held.again.append(self._part(held, number, self._apart[part.server]))
        self._initialize(held, initial)
        return held

    def _part(self, held: RemoteVariable, number: int, server: Server) -> ResourceVariable:
        shape = held.shape_of(number) if not held.is_counter else held.shape
        with server.building():
            # The name in the graph is the name on the server.
            return ResourceVariable(
                lambda: tf.zeros(shape, held.dtype),
                name=f"held/{held.name}/{number}",
                trainable=False,
                dtype=held.dtype,
            )

    def _initialize(self, held: RemoteVariable, initial: Callable[[], Any]) -> None:
        if self._is_there(held):
            return
        if self._servers.rank == 0:
            self.write(held, np.asarray(initial()))
            return
        start = named = time.monotonic()
        while not self._is_there(held):
            now = time.monotonic()
            if now - start >= self._timeout:
                raise TimeoutError(
                    f"The first worker gives each variable its first value. Received: none for "
                    f"{held.path!r} within {self._timeout:g} s. See that it runs, and that all "
                    "workers make the same variables in the same order, under the same names."
                )
            if now - named >= _NAME_EVERY_SECONDS:
                named = now
                logging.warning(
                    "Waiting for the first worker's %s: %.0f s.", held.path, now - start
                )
            time.sleep(_POLL_SECONDS)

    def _is_there(self, held: RemoteVariable) -> bool:
        def ask(server: Server) -> bool:
            numbers = held.here(server.number)
            if not numbers:
                return True
            apart = self._apart[server.number]
            questions = apart.once(
                ("question", held.name), lambda: [held.again[n].is_initialized() for n in numbers]
            )
            return all(apart.run(questions))

        return all(self._servers.each(ask))

    def write(self, held: RemoteVariable, value: Any) -> None:
        """Gives a variable another value, on all of its servers."""
        value = np.asarray(value)

        def assign(server: Server) -> None:
            numbers = held.here(server.number)
            if numbers:
                apart = self._apart[server.number]
                feeds, changes = self._assignment(held, apart)
                parts = [value if held.is_counter else held.rows(value, n) for n in numbers]
                apart.run(changes, dict(zip(feeds, parts, strict=True)))

        self._servers.each(assign)

    def _assignment(self, held: RemoteVariable, server: Server) -> tuple[list[Any], Any]:
        key = ("assignment", held.name)
        return server.once(key, lambda: self._new_assignment(held, server))

    def _new_assignment(self, held: RemoteVariable, server: Server) -> tuple[list[Any], Any]:
        parts = [held.again[number] for number in held.here(server.number)]
        feeds = [tf.compat.v1.placeholder(part.dtype, part.shape) for part in parts]

        def assign() -> list[tf.Tensor]:
            for part, feed in zip(parts, feeds, strict=True):
                part.assign(feed, read_value=False)
            return []

        change, _ = server.locked(assign)
        return feeds, change

    def read(self, held: Sequence[RemoteVariable]) -> list[np.ndarray]:
        """Returns the present values of variables, each server's at one moment."""
        held = list(held)

        def ask(server: Server) -> dict[tuple[int, int], np.ndarray]:
            wanted = [
                (n, number)
                for n, one in enumerate(held)
                for number in (
                    one.here(server.number)[:1] if one.is_counter else one.here(server.number)
                )
            ]
            if not wanted:
                return {}
            key = ("reading", *(held[n].name + f"/{number}" for n, number in wanted))
            apart = self._apart[server.number]
            _, results = apart.once(
                key,
                lambda: apart.locked(
                    lambda: [held[n].again[number].read_value() for n, number in wanted]
                ),
            )
            return dict(zip(wanted, apart.run(results), strict=True))

        found: dict[tuple[int, int], np.ndarray] = {}
        for answers in self._servers.each(ask):
            found.update(answers)
        return [self._joined(one, n, found) for n, one in enumerate(held)]

    def _joined(
        self, held: RemoteVariable, n: int, found: dict[tuple[int, int], np.ndarray]
    ) -> np.ndarray:
        if held.is_counter or not held.shape:
            return np.asarray(found[n, 0])
        return np.concatenate([found[n, number] for number in range(len(held.slices))])

    def report(self) -> str:
        """Returns what is where, and how even the load is."""
        placed = [
            (one.path, one.shape, one.dtype.size, one.slices)
            for one in self.held
            if not one.is_counter
        ]
        return report(placed, len(self._servers))
