"""The updates of one training step, compiled into one operation on each server.

An optimizer updates variables one by one, each with its own function. The functions and their
arguments are recorded until the step is complete. Then each server gets one function that makes
its part of all updates at once. Gradients are sliced like their variables and sent to a server as
one vector per dtype.

The new values are pulled as one vector per dtype, too. Only variables with many rows of which the
updates change some, such as those of an embedding, are pulled by rows: those rows that have changed
since the worker's copy was assigned last.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from strategies.ps.connection import ServerConnection, ServerGroup
from strategies.ps.embedding_rows import RowUpdate
from strategies.ps.push import Push
from strategies.ps.registry import RemoteVariable
from strategies.ps.row_log import trace_changed_rows
from strategies.ps.sequence_number import SequenceNumber
from strategies.ps.updates import VariableUpdate, check_applicable
from strategies.ps.variables import (
    CounterVariable,
    PulledRows,
    ServerView,
    SharedVariable,
    active_view,
)


@dataclass
class _ServerProgram:
    """A program on one server: its placeholders, operations and results.

    Each push has a number, by which the server knows whether it has made a push already that a
    worker sends again because its connection broke.
    """

    packs: list[tf.Tensor]
    sparse: list[tuple[tf.Tensor, tf.Tensor]]
    wholes: list[tf.Tensor]
    counts: list[tf.Tensor]
    steps: tf.Tensor
    number: tf.Tensor
    push: tf.Operation
    push_and_pull: list[tf.Tensor]
    pull: list[tf.Tensor]
    local_values: dict[int, tf.Tensor] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))


class StepProgram:
    """All updates of a step, as one operation on each server.

    Args:
      servers: the servers that make the updates.
      updates: the updates in order.
      counters: the counters that are incremented with them.
      pushes: the variable in which each server counts the steps of each worker.
      wire: the dtype in which float32 values are sent to the servers.

    Attributes:
      is_mergeable: whether several steps may be summed and sent as one.
      variables: the variables that are pulled.
    """

    def __init__(
        self,
        servers: ServerGroup,
        updates: Sequence[VariableUpdate],
        counters: Sequence[CounterVariable],
        pushes: RemoteVariable,
        wire: tf.DType = tf.float32,
    ):
        self._servers = servers
        self._updates = tuple(updates)
        self._counters = tuple(counters)
        self._pushes = pushes
        self._wire = wire
        self._locals: list[Any] = []
        check_applicable(self._updates)
        # Embedding rows are not pulled here: lookups fetch them.
        self.variables = list(
            {id(u.variable): u.variable for u in updates if not isinstance(u, RowUpdate)}.values()
        )
        self._dtypes = sorted(
            {leaf.dtype for u in updates for leaf in u.leaves if u.transfer(leaf) == "rows"},
            key=lambda dtype: dtype.name,
        )
        self._pulled_dtypes = sorted(
            {v.dtype for v in self.variables}, key=lambda dtype: dtype.name
        )
        # The slices that are pulled by rows, which is known once their updates are traced.
        self._slices_of_rows: set[tuple[str, int]] = set()
        # Created before the servers' graphs are entered.
        self._positions = {
            variable.remote.name: variable.row_positions
            for variable in self.variables
            if variable.remote.logs
        }
        # One by one: all programs share the list of the worker's own variables.
        self._server_programs = [self._build(server) for server in servers.servers]
        self.is_mergeable = all(update.is_mergeable for update in self._updates)
        if servers.rank == 0:
            self._warn_of_whole_pulls()
        for update in self._updates:
            update.forget_function()

    def shares_variables(self, other: StepProgram) -> bool:
        """Returns whether another program pulls some of the variables that this one pulls."""
        mine = {id(variable) for variable in (*self.variables, *self._counters)}
        return any(id(variable) in mine for variable in (*other.variables, *other._counters))

    # What a worker sends.

    def pack(
        self, updates: Sequence[VariableUpdate], counts: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        """Returns the tensors of a step; `push_from` takes their values."""
        tensors: list[tf.Tensor] = []
        for server in self._servers.servers:
            for dtype in self._dtypes:
                parts = [
                    tf.reshape(u.variable.remote.rows(u.leaves[leaf], number), [-1])
                    for u, leaf, number in self._segments(updates, server, "rows")
                    if u.leaves[leaf].dtype == dtype
                ]
                pack = tf.concat(parts, 0) if parts else tf.zeros([0], dtype)
                tensors.append(tf.cast(pack, self._wire_dtype(dtype)))
            for u, leaf, number in self._segments(updates, server, "sparse"):
                tensors += _rows_in_slice(u.leaves[leaf], u.variable.remote, number)
            for update in self._row_updates(updates):
                tensors += update.pieces(server.number)
        tensors += [leaf for u in updates for leaf in u.leaves if u.transfer(leaf) == "whole"]
        tensors += [tf.convert_to_tensor(variable) for variable in self._locals]
        return tensors + [tf.cast(count, tf.int64) for count in counts]

    def push_from(self, arrays: Sequence[np.ndarray]) -> Push:
        """Returns the push made of the values of the tensors from `pack`."""
        rest = iter(arrays)
        packs, sparse = [], []
        for program in self._server_programs:
            packs.append([next(rest) for _ in program.packs])
            sparse.append([(next(rest), next(rest)) for _ in program.sparse])
        wholes = [next(rest) for _ in [*self._server_programs[0].wholes, *self._locals]]
        return Push(packs, sparse, wholes, list(rest))

    def feeds(self, push: Push, server: int) -> dict[tf.Tensor, np.ndarray]:
        """Returns the values of a server's placeholders."""
        program = self._server_programs[server]
        feeds = dict(zip(program.packs, push.packs[server], strict=True))
        for placeholders, parts in zip(program.sparse, push.sparse[server], strict=True):
            feeds.update(zip(placeholders, parts, strict=True))
        feeds.update(zip(program.wholes, push.wholes, strict=False))
        feeds.update(self.local_feeds(push, server))
        feeds.update(zip(program.counts, push.counts, strict=True))
        feeds[program.steps] = np.int64(push.steps)
        feeds[program.number] = np.int64(next(program.numbers))
        return feeds

    def local_feeds(self, push: Push, server: int) -> dict[tf.Tensor, np.ndarray]:
        """Returns those values of a server's placeholders that a pull needs."""
        program = self._server_programs[server]
        local = push.wholes[len(program.wholes) :]
        return {place: local[number] for number, place in program.local_values.items()}

    # What the servers do.

    def push(self, push: Push, server: ServerConnection) -> None:
        """Applies the updates on a server."""
        program = self._server_programs[server.number]
        server.run(program.push, self.feeds(push, server.number), may_repeat=True)

    def push_and_pull(self, push: Push, server: ServerConnection) -> list[np.ndarray]:
        """Applies the updates on a server and returns the new values; see `dtypes`."""
        program = self._server_programs[server.number]
        return server.run(program.push_and_pull, self.feeds(push, server.number), may_repeat=True)

    def pull(self, push: Push, server: ServerConnection) -> list[np.ndarray]:
        """Returns the present values on a server, without applying the updates of a push."""
        program = self._server_programs[server.number]
        return server.run(program.pull, self.local_feeds(push, server.number), may_repeat=True)

    def push_operation(self, server: ServerConnection) -> tuple[tf.Operation, list[tf.Tensor]]:
        """Returns the operation that applies the updates on a server, and the new values."""
        program = self._server_programs[server.number]
        return program.push, program.push_and_pull

    def pull_operation(self, server: ServerConnection) -> list[tf.Tensor]:
        """Returns the present values on a server."""
        return self._server_programs[server.number].pull

    def add_pull(self, server: ServerConnection) -> list[tf.Tensor]:
        """Adds a pull to a server's graph, where it waits for control dependencies."""
        program = self._server_programs[server.number]
        return server.locked(lambda: self._read(server, program), changes=False)[1]

    # What a worker receives.

    @property
    def dtypes(self) -> list[tf.DType]:
        """The dtypes of what all servers return, one server after the other.

        A server returns one vector per dtype, the counts, and for each slice that is pulled by rows
        the numbers of the rows, their values, and the positions of the log since which they changed
        and at which they were read.
        """
        dtypes = []
        for server in self._servers.servers:
            dtypes += [*self._pulled_dtypes, tf.int64]
            for variable, _ in self._slices_of_rows_on(server):
                dtypes += [tf.int64, variable.dtype, tf.int64]
        return dtypes

    def unpack(
        self, tensors: Sequence[tf.Tensor]
    ) -> list[tuple[SharedVariable, tf.Tensor | PulledRows]]:
        """Returns the new value of each variable and counter, or the rows that have changed."""
        rest = iter(tensors)
        found: dict[tuple[str, int], tf.Tensor] = {}
        counts: list[tf.Tensor] = []
        values: list[tuple[SharedVariable, tf.Tensor | PulledRows]] = []
        for server in self._servers.servers:
            for dtype in self._pulled_dtypes:
                slices = self._slices_on(server, dtype)
                sizes = [math.prod(remote.shape_of(number)) for remote, number in slices]
                vector = tf.ensure_shape(next(rest), [sum(sizes)])
                if not sizes:  # this server has none of them
                    continue
                for (remote, number), part in zip(slices, tf.split(vector, sizes), strict=True):
                    found[remote.name, number] = tf.reshape(part, remote.shape_of(number))
            counts.append(tf.ensure_shape(next(rest), [len(self._counters)]))
            for variable, number in self._slices_of_rows_on(server):
                shape = [None, *variable.shape[1:]]
                rows = tf.ensure_shape(next(rest), [None]) + variable.remote.slices[number].start
                changed = tf.IndexedSlices(tf.ensure_shape(next(rest), shape), rows)
                since, position = tf.unstack(tf.ensure_shape(next(rest), [2]))
                values.append((variable, PulledRows(number, changed, since, position)))
        for variable in self.variables:
            remote = variable.remote
            numbers = range(len(remote.slices))
            parts = [found[key] for key in ((remote.name, n) for n in numbers) if key in found]
            if parts:
                values.append((variable, tf.concat(parts, 0) if len(parts) > 1 else parts[0]))
        for number, counter in enumerate(self._counters):
            values.append((counter, tf.cast(counts[0][number], counter.dtype)))
        return values

    # How the program is built.

    def _wire_dtype(self, dtype: tf.DType) -> tf.DType:
        return self._wire if dtype == tf.float32 else dtype

    def _segments(
        self, updates: Sequence[VariableUpdate], server: ServerConnection, kind: str
    ) -> Iterator[tuple[VariableUpdate, int, int]]:
        """Yields the update, argument and slice of each piece for a server in order."""
        for update in updates:
            for number in update.variable.remote.slices_on(server.number):
                for leaf, value in enumerate(update.leaves):
                    if update.transfer(value) == kind:
                        yield update, leaf, number

    def _row_updates(self, updates: Sequence[VariableUpdate]) -> Iterator[RowUpdate]:
        return (update for update in updates if isinstance(update, RowUpdate))

    def _slices_on(
        self, server: ServerConnection, dtype: tf.DType
    ) -> list[tuple[RemoteVariable, int]]:
        remotes = [v.remote for v in self.variables if v.dtype == dtype]
        return [
            (remote, number)
            for remote in remotes
            for number in remote.slices_on(server.number)
            if (remote.name, number) not in self._slices_of_rows
        ]

    def _slices_of_rows_on(self, server: ServerConnection) -> list[tuple[SharedVariable, int]]:
        return [
            (variable, number)
            for variable in self.variables
            for number in variable.remote.slices_on(server.number)
            if (variable.remote.name, number) in self._slices_of_rows
        ]

    def _warn_of_whole_pulls(self) -> None:
        for update in self._updates:
            remote = update.variable.remote
            megabytes = math.prod(remote.shape) * remote.dtype.size / 1e6
            is_sparse = any(update.transfer(leaf) == "sparse" for leaf in update.leaves)
            if is_sparse and remote.logs and (remote.name, 0) not in self._slices_of_rows:
                logging.warning(
                    "Workers can pull only the changed rows of a variable if a step changes no "
                    "other rows. Received: an optimizer that changes all rows of %r, %s, so %.0f "
                    "MB are pulled at a time. Use strategies.DistributedEmbedding, or SGD without "
                    "momentum or weight decay.",
                    remote.path, list(remote.shape), megabytes,
                )  # fmt: skip

    def _build(self, server: ServerConnection) -> _ServerProgram:
        placeholder = tf.compat.v1.placeholder
        with server.building():
            last = SequenceNumber()
            program = _ServerProgram(
                [placeholder(self._wire_dtype(dtype), [None]) for dtype in self._dtypes],
                [
                    (
                        placeholder(u.leaves[leaf].dtype, [None, *u.variable.remote.shape[1:]]),
                        placeholder(tf.int64, [None]),
                    )
                    for u, leaf, _ in self._segments(self._updates, server, "sparse")
                ]
                + [pair for u in self._row_updates(self._updates) for pair in u.placeholders()],
                [
                    placeholder(leaf.dtype, leaf.shape)
                    for u in self._updates
                    for leaf in u.leaves
                    if u.transfer(leaf) == "whole"
                ],
                [placeholder(tf.int64, []) for _ in self._counters],
                placeholder(tf.int64, []),
                placeholder(tf.int64, []),
                None,
                [],
                [],
            )

        def body() -> list[tf.Tensor]:
            last.change_once(program.number, lambda: self._apply(server, program))
            return self._read(server, program)

        program.push, program.push_and_pull = server.locked(body)
        _, program.pull = server.locked(lambda: self._read(server, program), changes=False)
        return program

    def _apply(self, server: ServerConnection, program: _ServerProgram) -> None:
        sizes: dict[tf.DType, list[int]] = {dtype: [] for dtype in self._dtypes}
        for u, leaf, number in self._segments(self._updates, server, "rows"):
            sizes[u.leaves[leaf].dtype].append(math.prod(u.variable.remote.shape_of(number)))
        pieces = {}
        for dtype, vector in zip(self._dtypes, program.packs, strict=True):
            is_mean = vector.dtype == tf.float16
            vector = tf.ensure_shape(tf.cast(vector, dtype), [sum(sizes[dtype])])
            vector = vector * tf.cast(program.steps, dtype) if is_mean else vector
            pieces[dtype] = iter(tf.split(vector, sizes[dtype]) if sizes[dtype] else [])
        sparse = iter(program.sparse)
        in_view = sum(update.arguments for update in self._row_updates(self._updates))
        of_rows = iter(program.sparse[len(program.sparse) - in_view :])
        wholes = iter(program.wholes)
        changed: dict[tuple[str, int], list[tf.Tensor | None]] = {}
        for update in self._updates:
            remote = update.variable.remote
            whole = {
                leaf: next(wholes)
                for leaf, value in enumerate(update.leaves)
                if update.transfer(value) == "whole"
            }
            if isinstance(update, RowUpdate):
                view = ServerView(
                    server, remote, 0, lambda v: self._local_placeholder(v, server, program)
                )
                update.apply(view, [next(of_rows) for _ in range(update.arguments)], whole)
            for number in remote.slices_on(server.number):
                leaves = []
                for leaf, value in enumerate(update.leaves):
                    kind = update.transfer(value)
                    if kind == "rows":
                        value = tf.reshape(next(pieces[value.dtype]), remote.shape_of(number))
                    elif kind == "sparse":
                        value = tf.IndexedSlices(
                            *next(sparse), tf.constant(remote.shape_of(number), tf.int64)
                        )
                    elif kind == "whole":
                        value = whole[leaf]
                    leaves.append(value)
                args, kwargs = tf.nest.pack_sequence_as(update.args, leaves)
                view = ServerView(
                    server, remote, number, lambda v: self._local_placeholder(v, server, program)
                )
                update_part = functools.partial(update.fn, remote.parts[number], *args, **kwargs)
                with active_view.activate(view):
                    if remote.logs:
                        rows = trace_changed_rows(update_part, remote.parts[number])
                        changed.setdefault((remote.name, number), []).append(rows)
                    else:
                        update_part()
        self._log_changes(changed)
        for counter, count in zip(self._counters, program.counts, strict=True):
            part = counter.remote.parts[server.number]
            part.assign_add(tf.cast(count, part.dtype), read_value=False)
        seen = self._pushes.parts[server.number]
        steps = tf.one_hot(self._servers.rank, self._servers.size, program.steps, dtype=tf.int64)
        seen.assign_add(steps, read_value=False)

    def _log_changes(self, changed: dict[tuple[str, int], list[tf.Tensor | None]]) -> None:
        """Logs which rows of each slice the updates change."""
        logs = {
            (variable.remote.name, number): log
            for variable in self.variables
            for number, log in enumerate(variable.remote.logs)
        }
        for key, each in changed.items():
            rows = [one for one in each if one is not None]
            if len(rows) < len(each):
                logs[key].add_all()
            else:
                logs[key].add(tf.concat(rows, 0))
                self._slices_of_rows.add(key)

    def _local_placeholder(
        self, variable: Any, server: ServerConnection, program: _ServerProgram
    ) -> tf.Tensor:
        """Returns the placeholder of one of the worker's own variables."""
        known = [id(one) for one in self._locals]
        if id(variable) not in known:
            self._locals.append(variable)
            known.append(id(variable))
        number = known.index(id(variable))
        if number not in program.local_values:
            with server.building():
                program.local_values[number] = tf.compat.v1.placeholder(
                    variable.dtype, variable.shape
                )
        return program.local_values[number]

    def _read(self, server: ServerConnection, program: _ServerProgram) -> list[tf.Tensor]:
        vectors = []
        for dtype in self._pulled_dtypes:
            parts = [
                tf.reshape(remote.parts[number].read_value(), [-1])
                for remote, number in self._slices_on(server, dtype)
            ]
            vectors.append(tf.concat(parts, 0) if parts else tf.zeros([0], dtype))
        counts = [
            tf.cast(counter.remote.parts[server.number].read_value(), tf.int64)
            for counter in self._counters
        ]
        of_rows = []
        for variable, number in self._slices_of_rows_on(server):
            remote = variable.remote
            positions = self._local_placeholder(self._positions[remote.name], server, program)
            since = positions[number]
            rows, position = remote.logs[number].since(since)
            values = remote.parts[number].sparse_read(rows)
            of_rows += [rows, values, tf.stack([since, position])]
        return [*vectors, tf.stack(counts) if counts else tf.zeros([0], tf.int64), *of_rows]


def _rows_in_slice(
    slices: tf.IndexedSlices, remote: RemoteVariable, number: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the values that belong to one slice and their row numbers in it."""
    part = remote.slices[number]
    indices = tf.cast(slices.indices, tf.int64)
    mine = (indices >= part.start) & (indices < part.stop)
    return tf.boolean_mask(slices.values, mine), tf.boolean_mask(indices, mine) - part.start


class NewValues:
    """The new values of variables, as tensors of the graph in which they are iterated over."""

    def __init__(self, program: StepProgram, vectors: Sequence[tf.Tensor]):
        self._program = program
        self._vectors = vectors

    def __iter__(self) -> Iterator[tuple[SharedVariable, tf.Tensor | PulledRows]]:
        return iter(self._program.unpack(self._vectors))
