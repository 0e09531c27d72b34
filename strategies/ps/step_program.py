"""The changes that one training step makes, as what a worker sends and what a server does.

An optimizer changes variables one by one, each by a function of its own. Here the functions are
kept, with what they are called with, until the step is complete; then each server gets one
function that makes all of its part of the changes at once. What was computed for a variable is
cut as the variable is, and goes to a server in one piece for each dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.ps.changes import Change, check
from strategies.ps.client import Server, Servers
from strategies.ps.push import Push
from strategies.ps.registry import RemoteVariable
from strategies.ps.sparse import RowChange
from strategies.ps.variables import CounterVariable, ServerView, SharedVariable, viewing


@dataclass
class _Ready:
    """A program on one server: where its arguments go, what it does, and what it gives."""

    packs: list[tf.Tensor]
    sparse: list[tuple[tf.Tensor, tf.Tensor]]
    wholes: list[tf.Tensor]
    counts: list[tf.Tensor]
    steps: tf.Tensor
    change: tf.Operation
    changed: list[tf.Tensor]
    present: list[tf.Tensor]
    locals: dict[int, tf.Tensor] = field(default_factory=dict)


class StepProgram:
    """All changes of a step, ready on the servers.

    Args:
      servers: that make them.
      changes: in their order.
      counters: that are counted up with them.
      pushes: of which worker each server has seen how many steps.
      wire: the dtype that float32 travels as, to the servers.
    """

    def __init__(
        self,
        servers: Servers,
        changes: Sequence[Change],
        counters: Sequence[CounterVariable],
        pushes: RemoteVariable,
        wire: tf.DType = tf.float32,
    ):
        self._servers = servers
        self._changes = tuple(changes)
        self._counters = tuple(counters)
        self._pushes = pushes
        self._wire = wire
        self._locals: list[Any] = []
        check(self._changes)
        # Rows come back when they are looked up.
        self.variables = list(
            {id(c.variable): c.variable for c in changes if not isinstance(c, RowChange)}.values()
        )
        self._dtypes = sorted(
            {leaf.dtype for c in changes for leaf in c.leaves if c.kind(leaf) == "rows"},
            key=lambda dtype: dtype.name,
        )
        self._pulled = sorted({v.dtype for v in self.variables}, key=lambda dtype: dtype.name)
        # In order, for what one server needs of the worker's own variables all get.
        self._ready = [self._make(server) for server in servers.servers]

    # What a worker sends.

    def sent(self, changes: Sequence[Change], counts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the tensors of a step, as `received` takes their values."""
        tensors: list[tf.Tensor] = []
        for server in self._servers.servers:
            for dtype in self._dtypes:
                parts = [
                    tf.reshape(c.variable.held.rows(c.leaves[leaf], number), [-1])
                    for c, leaf, number in self._segments(changes, server, "rows")
                    if c.leaves[leaf].dtype == dtype
                ]
                packed = tf.concat(parts, 0) if parts else tf.zeros([0], dtype)
                tensors.append(tf.cast(packed, self._carried(dtype)))
            for c, leaf, number in self._segments(changes, server, "sparse"):
                tensors += _rows_of(c.leaves[leaf], c.variable.held, number)
            for change in self._row_changes(changes):
                tensors += change.sent(server.number)
        tensors += [leaf for c in changes for leaf in c.leaves if c.kind(leaf) == "whole"]
        tensors += [tf.convert_to_tensor(variable) for variable in self._locals]
        return tensors + [tf.cast(count, tf.int64) for count in counts]

    def received(self, arrays: Sequence[np.ndarray]) -> Push:
        """Returns the push that the values of `sent` are."""
        rest = iter(arrays)
        packs, sparse = [], []
        for ready in self._ready:
            packs.append([next(rest) for _ in ready.packs])
            sparse.append([(next(rest), next(rest)) for _ in ready.sparse])
        wholes = [next(rest) for _ in [*self._ready[0].wholes, *self._locals]]
        return Push(packs, sparse, wholes, list(rest))

    def feeds(self, push: Push, server: int) -> dict[tf.Tensor, np.ndarray]:
        """Returns what a server is given."""
        ready = self._ready[server]
        feeds = dict(zip(ready.packs, push.packs[server], strict=True))
        for places, parts in zip(ready.sparse, push.sparse[server], strict=True):
            feeds.update(zip(places, parts, strict=True))
        feeds.update(zip(ready.wholes, push.wholes, strict=False))
        for number, place in ready.locals.items():
            feeds[place] = push.wholes[len(ready.wholes) + number]
        feeds.update(zip(ready.counts, push.counts, strict=True))
        feeds[ready.steps] = np.int64(push.steps)
        return feeds

    # What servers do.

    def push(self, push: Push, server: Server) -> None:
        """Makes the changes on a server."""
        server.run(self._ready[server.number].change, self.feeds(push, server.number))

    def push_and_pull(self, push: Push, server: Server) -> list[np.ndarray]:
        """Makes the changes on a server and returns the new values, a vector for each dtype."""
        return server.run(self._ready[server.number].changed, self.feeds(push, server.number))

    def pull(self, server: Server) -> list[np.ndarray]:
        """Returns the present values on a server, a vector for each dtype."""
        return server.run(self._ready[server.number].present)

    # What comes back.

    @property
    def dtypes(self) -> list[tf.DType]:
        """Of what all servers give back, one after the other."""
        return [*self._pulled, tf.int64] * len(self._servers)

    def unpacked(self, vectors: Sequence[tf.Tensor]) -> list[tuple[SharedVariable, tf.Tensor]]:
        """Returns each variable's new value, counters' too."""
        each = len(self._pulled) + 1
        found: dict[tuple[str, int], tf.Tensor] = {}
        for server in self._servers.servers:
            mine = vectors[server.number * each : (server.number + 1) * each]
            for dtype, vector in zip(self._pulled, mine, strict=False):
                places = self._places(server, dtype)
                sizes = [math.prod(held.shape_of(number)) for held, number in places]
                vector = tf.ensure_shape(vector, [sum(sizes)])
                if not sizes:  # this server has none of them
                    continue
                for (held, number), part in zip(places, tf.split(vector, sizes), strict=True):
                    found[held.name, number] = tf.reshape(part, held.shape_of(number))
        values = []
        for variable in self.variables:
            held = variable.held
            parts = [found[held.name, number] for number in range(len(held.slices))]
            values.append((variable, tf.concat(parts, 0) if len(parts) > 1 else parts[0]))
        counts = tf.ensure_shape(vectors[each - 1], [len(self._counters)])
        for number, counter in enumerate(self._counters):
            values.append((counter, tf.cast(counts[number], counter.dtype)))
        return values

    # How it is made.

    def _carried(self, dtype: tf.DType) -> tf.DType:
        return self._wire if dtype == tf.float32 else dtype

    def _segments(
        self, changes: Sequence[Change], server: Server, kind: str
    ) -> Iterator[tuple[Change, int, int]]:
        """Yields the change, argument and slice of each piece for a server, in order."""
        for change in changes:
            for number in change.variable.held.here(server.number):
                for leaf, value in enumerate(change.leaves):
                    if change.kind(value) == kind:
                        yield change, leaf, number

    def _row_changes(self, changes: Sequence[Change]) -> Iterator[RowChange]:
        return (change for change in changes if isinstance(change, RowChange))

    def _places(self, server: Server, dtype: tf.DType) -> list[tuple[RemoteVariable, int]]:
        helds = [v.held for v in self.variables if v.dtype == dtype]
        return [(held, number) for held in helds for number in held.here(server.number)]

    def _make(self, server: Server) -> _Ready:
        placeholder = tf.compat.v1.placeholder
        with server.building():
            ready = _Ready(
                [placeholder(self._carried(dtype), [None]) for dtype in self._dtypes],
                [
                    (
                        placeholder(c.leaves[leaf].dtype, [None, *c.variable.held.shape[1:]]),
                        placeholder(tf.int64, [None]),
                    )
                    for c, leaf, _ in self._segments(self._changes, server, "sparse")
                ]
                + [pair for c in self._row_changes(self._changes) for pair in c.places()],
                [
                    placeholder(leaf.dtype, leaf.shape)
                    for c in self._changes
                    for leaf in c.leaves
                    if c.kind(leaf) == "whole"
                ],
                [placeholder(tf.int64, []) for _ in self._counters],
                placeholder(tf.int64, []),
                None,
                [],
                [],
            )

        def body() -> list[tf.Tensor]:
            self._apply(server, ready)
            return self._read(server)

        ready.change, ready.changed = server.locked(body)
        _, ready.present = server.locked(lambda: self._read(server))
        return ready

    def _apply(self, server: Server, ready: _Ready) -> None:
        sizes: dict[tf.DType, list[int]] = {dtype: [] for dtype in self._dtypes}
        for c, leaf, number in self._segments(self._changes, server, "rows"):
            sizes[c.leaves[leaf].dtype].append(math.prod(c.variable.held.shape_of(number)))
        pieces = {}
        for dtype, vector in zip(self._dtypes, ready.packs, strict=True):
            vector = tf.ensure_shape(tf.cast(vector, dtype), [sum(sizes[dtype])])
            pieces[dtype] = iter(tf.split(vector, sizes[dtype]) if sizes[dtype] else [])
        sparse = iter(ready.sparse)
        in_view = sum(change.arguments for change in self._row_changes(self._changes))
        of_rows = iter(ready.sparse[len(ready.sparse) - in_view :])
        wholes = iter(ready.wholes)
        for change in self._changes:
            held = change.variable.held
            whole = {
                leaf: next(wholes)
                for leaf, value in enumerate(change.leaves)
                if change.kind(value) == "whole"
            }
            if isinstance(change, RowChange):
                view = ServerView(server, held, 0, lambda v: self._local(v, server, ready))
                change.make(view, [next(of_rows) for _ in range(change.arguments)], whole)
            for number in held.here(server.number):
                leaves = []
                for leaf, value in enumerate(change.leaves):
                    kind = change.kind(value)
                    if kind == "rows":
                        value = tf.reshape(next(pieces[value.dtype]), held.shape_of(number))
                    elif kind == "sparse":
                        value = tf.IndexedSlices(
                            *next(sparse), tf.constant(held.shape_of(number), tf.int64)
                        )
                    elif kind == "whole":
                        value = whole[leaf]
                    leaves.append(value)
                args, kwargs = tf.nest.pack_sequence_as(change.args, leaves)
                view = ServerView(server, held, number, lambda v: self._local(v, server, ready))
                with viewing(view):
                    change.fn(held.parts[number], *args, **kwargs)
        for counter, count in zip(self._counters, ready.counts, strict=True):
            part = counter.held.parts[server.number]
            part.assign_add(tf.cast(count, part.dtype), read_value=False)
        seen = self._pushes.parts[server.number]
        steps = tf.one_hot(self._servers.rank, self._servers.size, ready.steps, dtype=tf.int64)
        seen.assign_add(steps, read_value=False)

    def _local(self, variable: Any, server: Server, ready: _Ready) -> tf.Tensor:
        """Returns a placeholder for a variable of the worker's own."""
        known = [id(one) for one in self._locals]
        if id(variable) not in known:
            self._locals.append(variable)
            known.append(id(variable))
        number = known.index(id(variable))
        if number not in ready.locals:
            with server.building():
                ready.locals[number] = tf.compat.v1.placeholder(variable.dtype, variable.shape)
        return ready.locals[number]

    def _read(self, server: Server) -> list[tf.Tensor]:
        vectors = []
        for dtype in self._pulled:
            parts = [
                tf.reshape(held.parts[number].read_value(), [-1])
                for held, number in self._places(server, dtype)
            ]
            vectors.append(tf.concat(parts, 0) if parts else tf.zeros([0], dtype))
        counts = [
            tf.cast(counter.held.parts[server.number].read_value(), tf.int64)
            for counter in self._counters
        ]
        return [*vectors, tf.stack(counts) if counts else tf.zeros([0], tf.int64)]


def _rows_of(
    slices: tf.IndexedSlices, held: RemoteVariable, number: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the values that are for one slice, and their rows in it."""
    part = held.slices[number]
    indices = tf.cast(slices.indices, tf.int64)
    mine = (indices >= part.start) & (indices < part.stop)
    return tf.boolean_mask(slices.values, mine), tf.boolean_mask(indices, mine) - part.start


class Unpacked:
    """The new values, made tensors of where they are used: in a branch, if need be."""

    def __init__(self, program: StepProgram, vectors: Sequence[tf.Tensor]):
        self._program = program
        self._vectors = vectors

    def __iter__(self) -> Iterator[tuple[SharedVariable, tf.Tensor]]:
        return iter(self._program.unpacked(self._vectors))
