"""The updates of one training step, compiled into one operation on each server.

An optimizer updates variables one by one, each with its own function. The functions and their
arguments are recorded until the step is complete. Then each server gets a single function that
makes its part of all updates at once. Gradients are sliced like their variables and sent to a
server as one vector per dtype.

The new values are pulled as one vector per dtype, too. Variables with many rows of which updates
change only some, such as those of an embedding, are pulled by rows instead: only the rows that have
changed since the worker's copy was last assigned.

[Note: the order of arguments]
The data that a worker sends have no names: they are a list of arrays, whose meaning follows from
their position. `pack` and `push_from`, the placeholders of `_build`, and `_apply` all go through
the updates in the same order. For each server: the dense arguments, as one vector per dtype, by
update, slice and argument (`_segments`); the sparse arguments, in the same way; those of embedding
rows. Then, for all servers: the replicated arguments; the worker's own variables, in the order in
which updates first read them; the counts. If the order is changed in only one of these places,
gradients of variables with the same shape are mixed up, and no error is raised.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
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
from strategies.ps.updates import Transfer, VariableUpdate, check_applicable
from strategies.ps.variables import (
    CounterVariable,
    PulledRows,
    ServerView,
    SharedVariable,
    active_view,
)


@dataclass
class ServerProgram:
    """A program on one server: its placeholders, operations and results.

    Attributes:
      dense: for each dtype, the vector of the dense arguments.
      sparse: for each sparse argument, and then each argument of rows in view, the values and the
        row numbers.
      replicated: the arguments that all servers get.
      counts: the increments of the counters.
      steps: the number of steps that are summed in a push.
      number: the number of the push; see [Note: exactly-once updates] in ps/sequence_number.py.
      local_values: the worker's own variables that the updates read, by their number among those
        of all servers.
      numbers: the numbers of future pushes.
      push: applies the updates.
      push_and_pull: the new values after the updates, read in the same critical section.
      pull: the current values, without the updates.
    """

    dense: list[tf.Tensor]
    sparse: list[tuple[tf.Tensor, tf.Tensor]]
    replicated: list[tf.Tensor]
    counts: list[tf.Tensor]
    steps: tf.Tensor
    number: tf.Tensor
    local_values: dict[int, tf.Tensor] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    push: tf.Operation = None
    push_and_pull: list[tf.Tensor] = field(default_factory=list)
    pull: list[tf.Tensor] = field(default_factory=list)


class _Received:
    """The arguments that a server has received, from which each update takes its own in turn.

    See [Note: the order of arguments].

    Args:
      dense: for each dtype, the pieces of the vector.
      sparse: the pairs of the sparse arguments.
      in_view: the pairs of the arguments of rows in view.
      replicated: the arguments that all servers get.
    """

    def __init__(
        self,
        dense: Mapping[tf.DType, Sequence[tf.Tensor]],
        sparse: Sequence[tuple[tf.Tensor, tf.Tensor]],
        in_view: Sequence[tuple[tf.Tensor, tf.Tensor]],
        replicated: Sequence[tf.Tensor],
    ):
        self._dense = {dtype: iter(pieces) for dtype, pieces in dense.items()}
        self._sparse, self._in_view = iter(sparse), iter(in_view)
        self._replicated = iter(replicated)

    def take_replicated(self, update: VariableUpdate) -> dict[int, tf.Tensor]:
        """Returns an update's arguments that all servers get, by their position."""
        return {
            position: next(self._replicated)
            for position, leaf in enumerate(update.leaves)
            if update.transfer(leaf) is Transfer.REPLICATED
        }

    def take_in_view(self, update: RowUpdate) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """Returns the pairs of an update of rows in view."""
        return [next(self._in_view) for _ in range(update.arguments)]

    def take_of_slice(
        self, update: VariableUpdate, number: int, replicated: Mapping[int, tf.Tensor]
    ) -> list[Any]:
        """Returns the arguments of an update for one slice of its variable."""
        shape, leaves = update.variable.remote.shape_of(number), []
        for position, leaf in enumerate(update.leaves):
            transfer = update.transfer(leaf)
            if transfer is Transfer.DENSE:
                leaf = tf.reshape(next(self._dense[leaf.dtype]), shape)
            elif transfer is Transfer.SPARSE:
                leaf = tf.IndexedSlices(*next(self._sparse), tf.constant(shape, tf.int64))
            leaves.append(replicated.get(position, leaf))
        return leaves


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
            {
                leaf.dtype
                for update in updates
                for leaf in update.leaves
                if update.transfer(leaf) is Transfer.DENSE
            },
            key=lambda dtype: dtype.name,
        )
        self._pulled_dtypes = sorted(
            {v.dtype for v in self.variables}, key=lambda dtype: dtype.name
        )
        # The slices that are pulled by rows; known only after their updates are traced.
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
        own = {id(variable) for variable in (*self.variables, *self._counters)}
        return any(id(variable) in own for variable in (*other.variables, *other._counters))

    # What a worker sends.

    def pack(
        self, updates: Sequence[VariableUpdate], counts: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        """Returns the tensors of a step; `push_from` takes their values.

        See [Note: the order of arguments].
        """
        tensors: list[tf.Tensor] = []
        for server in self._servers.servers:
            for dtype in self._dtypes:
                parts = [
                    tf.reshape(u.variable.remote.rows(u.leaves[leaf], number), [-1])
                    for u, leaf, number in self._segments(updates, server, Transfer.DENSE)
                    if u.leaves[leaf].dtype == dtype
                ]
                vector = tf.concat(parts, 0) if parts else tf.zeros([0], dtype)
                tensors.append(tf.cast(vector, self._wire_dtype(dtype)))
            for u, leaf, number in self._segments(updates, server, Transfer.SPARSE):
                tensors += _rows_in_slice(u.leaves[leaf], u.variable.remote, number)
            for update in self._row_updates(updates):
                tensors += update.pieces(server.number)
        tensors += _replicated_leaves(updates)
        tensors += [tf.convert_to_tensor(variable) for variable in self._locals]
        return tensors + [tf.cast(count, tf.int64) for count in counts]

    def push_from(self, arrays: Sequence[np.ndarray]) -> Push:
        """Returns the push made of the values of the tensors from `pack`."""
        rest = iter(arrays)
        dense, sparse = [], []
        for program in self._server_programs:
            dense.append([next(rest) for _ in program.dense])
            sparse.append([(next(rest), next(rest)) for _ in program.sparse])
        # A merged push keeps the newest values of the worker's own variables, too.
        replicated = [next(rest) for _ in [*self._server_programs[0].replicated, *self._locals]]
        return Push(dense, sparse, replicated, list(rest))

    def feeds(self, push: Push, server: int) -> dict[tf.Tensor, np.ndarray]:
        """Returns the values of a server's placeholders, and the next number for the push.

        Pushes of one program are sent one after the other: by the thread that makes the step's
        calls in order, or by that of "async". If a push overtook another one, the server would
        take the latter, which has the lower number, for a repetition.
        """
        program = self._server_programs[server]
        feeds = dict(zip(program.dense, push.dense[server], strict=True))
        for placeholders, parts in zip(program.sparse, push.sparse[server], strict=True):
            feeds.update(zip(placeholders, parts, strict=True))
        feeds.update(zip(program.replicated, push.replicated, strict=False))
        feeds.update(self.local_feeds(push, server))
        feeds.update(zip(program.counts, push.counts, strict=True))
        feeds[program.steps] = np.int64(push.steps)
        feeds[program.number] = np.int64(next(program.numbers))
        return feeds

    def local_feeds(self, push: Push, server: int) -> dict[tf.Tensor, np.ndarray]:
        """Returns the values of the placeholders of a server that a pull needs."""
        program = self._server_programs[server]
        local = push.replicated[len(program.replicated) :]
        return {place: local[number] for number, place in program.local_values.items()}

    # What the servers do.

    def push(self, push: Push, server: ServerConnection) -> None:
        """Applies the updates on a server."""
        program = self._server_programs[server.number]
        server.run(program.push, self.feeds(push, server.number), idempotent=True)
        self._servers.acknowledged[server.number] += push.steps

    def push_and_pull(self, push: Push, server: ServerConnection) -> list[np.ndarray]:
        """Applies the updates on a server and returns the new values; see `dtypes`."""
        program = self._server_programs[server.number]
        feeds = self.feeds(push, server.number)
        values: list[np.ndarray] = server.run(program.push_and_pull, feeds, idempotent=True)
        self._servers.acknowledged[server.number] += push.steps
        return values

    def pull(self, push: Push, server: ServerConnection) -> list[np.ndarray]:
        """Returns the current values on a server, without applying the updates of a push."""
        program = self._server_programs[server.number]
        return server.run(program.pull, self.local_feeds(push, server.number), idempotent=True)

    def program_on(self, server: ServerConnection) -> ServerProgram:
        """Returns the program on a server."""
        return self._server_programs[server.number]

    def add_pull(self, server: ServerConnection) -> list[tf.Tensor]:
        """Adds a pull to a server's graph, with the control dependencies of the caller."""
        program = self._server_programs[server.number]
        return server.locked(lambda: self._read(server, program), changes=False)[1]

    # What a worker receives.

    @property
    def dtypes(self) -> list[tf.DType]:
        """The dtypes of the tensors that all servers return, one server after the other.

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
        slice_values: dict[tuple[str, int], tf.Tensor] = {}
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
                    slice_values[remote.name, number] = tf.reshape(part, remote.shape_of(number))
            counts.append(tf.ensure_shape(next(rest), [len(self._counters)]))
            for variable, number in self._slices_of_rows_on(server):
                shape = [None, *variable.shape[1:]]
                rows = tf.ensure_shape(next(rest), [None]) + variable.remote.slices[number].start
                changed = tf.IndexedSlices(tf.ensure_shape(next(rest), shape), rows)
                since, position = tf.unstack(tf.ensure_shape(next(rest), [2]))
                values.append((variable, PulledRows(number, changed, since, position)))
        for variable in self.variables:
            keys = ((variable.remote.name, n) for n in range(len(variable.remote.slices)))
            # Either all slices of a variable are pulled by rows, and are in `values`, or none.
            parts = [slice_values[key] for key in keys if key in slice_values]
            if parts:
                values.append((variable, tf.concat(parts, 0) if len(parts) > 1 else parts[0]))
        for number, counter in enumerate(self._counters):
            values.append((counter, tf.cast(counts[0][number], counter.dtype)))
        return values

    # How the program is built.

    def _wire_dtype(self, dtype: tf.DType) -> tf.DType:
        return self._wire if dtype == tf.float32 else dtype

    def _segments(
        self, updates: Sequence[VariableUpdate], server: ServerConnection, transfer: Transfer
    ) -> Iterator[tuple[VariableUpdate, int, int]]:
        """Yields the update, argument and slice of each piece for a server in order."""
        for update in updates:
            for number in update.variable.remote.slices_on(server.number):
                for leaf, value in enumerate(update.leaves):
                    if update.transfer(value) is transfer:
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
            is_sparse = any(update.transfer(leaf) is Transfer.SPARSE for leaf in update.leaves)
            if is_sparse and remote.logs and (remote.name, 0) not in self._slices_of_rows:
                logging.warning(
                    "Workers can pull only the changed rows of a variable if a step does not "
                    "change the others. Received: an optimizer that changes all rows of %r, %s, so "
                    "%.0f MB are pulled each time. Use strategies.DistributedEmbedding, or SGD "
                    "without momentum or weight decay.",
                    remote.path, list(remote.shape), megabytes,
                )  # fmt: skip

    def _build(self, server: ServerConnection) -> ServerProgram:
        """Adds the program to a server's graph."""
        with server.building():
            last = SequenceNumber()
            program = self._new_program(server)

        def body() -> list[tf.Tensor]:
            # The values are also read if the push is a repetition: the first response was lost.
            last.change_once(program.number, lambda: self._apply(server, program))
            return self._read(server, program)

        # The order matters: tracing `_apply` determines which slices are pulled by rows, and which
        # of the worker's own variables the updates read.
        program.push, program.push_and_pull = server.locked(body)
        _, program.pull = server.locked(lambda: self._read(server, program), changes=False)
        return program

    def _new_program(self, server: ServerConnection) -> ServerProgram:
        """Creates a program with placeholders only."""
        placeholder = tf.compat.v1.placeholder
        sparse = [
            (
                placeholder(u.leaves[leaf].dtype, [None, *u.variable.remote.shape[1:]]),
                placeholder(tf.int64, [None]),
            )
            for u, leaf, _ in self._segments(self._updates, server, Transfer.SPARSE)
        ]
        in_view = [pair for u in self._row_updates(self._updates) for pair in u.placeholders()]
        return ServerProgram(
            dense=[placeholder(self._wire_dtype(dtype), [None]) for dtype in self._dtypes],
            sparse=sparse + in_view,
            replicated=[
                placeholder(leaf.dtype, leaf.shape) for leaf in _replicated_leaves(self._updates)
            ],
            counts=[placeholder(tf.int64, []) for _ in self._counters],
            steps=placeholder(tf.int64, []),
            number=placeholder(tf.int64, []),
        )

    def _apply(self, server: ServerConnection, program: ServerProgram) -> None:
        """Adds a server's part of all updates to the function being traced.

        The optimizer's own function is called for each slice that the server holds. During the
        call, a view is active, in which the worker's variable and its slot variables stand for
        their parts on the server.
        """
        received = self._receive(server, program)
        changed: dict[tuple[str, int], list[tf.Tensor | None]] = {}
        for update in self._updates:
            remote = update.variable.remote
            replicated = received.take_replicated(update)
            if isinstance(update, RowUpdate):  # its variable has no slices
                view = self._view(server, remote, 0, program)
                update.apply(view, received.take_in_view(update), replicated, program.steps)
            for number in remote.slices_on(server.number):
                leaves = received.take_of_slice(update, number, replicated)
                args, kwargs = tf.nest.pack_sequence_as(update.args, leaves)
                update_part = functools.partial(update.fn, remote.parts[number], *args, **kwargs)
                with active_view.activate(self._view(server, remote, number, program)):
                    if remote.logs:
                        rows = trace_changed_rows(update_part, remote.parts[number])
                        changed.setdefault((remote.name, number), []).append(rows)
                    else:
                        update_part()
        self._log_changes(changed)
        self._count(server, program)

    def _receive(self, server: ServerConnection, program: ServerProgram) -> _Received:
        """Returns the values of a program's placeholders, split into pieces."""
        sizes: dict[tf.DType, list[int]] = {dtype: [] for dtype in self._dtypes}
        for u, leaf, number in self._segments(self._updates, server, Transfer.DENSE):
            sizes[u.leaves[leaf].dtype].append(math.prod(u.variable.remote.shape_of(number)))
        dense = {}
        for dtype, vector in zip(self._dtypes, program.dense, strict=True):
            # A sum of several steps may overflow float16, so their mean was sent.
            is_mean = vector.dtype == tf.float16
            vector = tf.ensure_shape(tf.cast(vector, dtype), [sum(sizes[dtype])])
            vector = vector * tf.cast(program.steps, dtype) if is_mean else vector
            dense[dtype] = tf.split(vector, sizes[dtype]) if sizes[dtype] else []
        in_view = sum(update.arguments for update in self._row_updates(self._updates))
        of_slices = len(program.sparse) - in_view
        return _Received(
            dense, program.sparse[:of_slices], program.sparse[of_slices:], program.replicated
        )

    def _view(
        self, server: ServerConnection, remote: RemoteVariable, number: int, program: ServerProgram
    ) -> ServerView:
        return ServerView(
            server, remote, number, lambda v: self._local_placeholder(v, server, program)
        )

    def _count(self, server: ServerConnection, program: ServerProgram) -> None:
        """Adds to the counters, and to the number of steps of this worker."""
        for counter, count in zip(self._counters, program.counts, strict=True):
            part = counter.remote.parts[server.number]
            part.assign_add(tf.cast(count, part.dtype), read_value=False)
        steps = tf.one_hot(self._servers.rank, self._servers.size, program.steps, dtype=tf.int64)
        self._pushes.parts[server.number].assign_add(steps, read_value=False)

    def _log_changes(self, changed: dict[tuple[str, int], list[tf.Tensor | None]]) -> None:
        """Logs which rows of each slice the updates change.

        This is done in the critical section of the change: a worker that pulled in between would
        take the log's position as including rows whose new values it does not have.
        """
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
        self, variable: Any, server: ServerConnection, program: ServerProgram
    ) -> tf.Tensor:
        """Returns the placeholder of one of the worker's own variables, such as a learning rate.

        Their numbers, in the list that `pack` sends to each server, are the same for all servers.
        """
        ids = [id(one) for one in self._locals]
        if id(variable) not in ids:
            self._locals.append(variable)
            ids.append(id(variable))
        number = ids.index(id(variable))
        if number not in program.local_values:
            with server.building():
                program.local_values[number] = tf.compat.v1.placeholder(
                    variable.dtype, variable.shape
                )
        return program.local_values[number]

    def _read(self, server: ServerConnection, program: ServerProgram) -> list[tf.Tensor]:
        """Returns a server's current values, in the form that `dtypes` describes."""
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
    """Returns the values that belong to one slice, and their row numbers in it."""
    part = remote.slices[number]
    indices = tf.cast(slices.indices, tf.int64)
    is_inside = (indices >= part.start) & (indices < part.stop)
    numbers = tf.boolean_mask(indices, is_inside) - part.start
    return tf.boolean_mask(slices.values, is_inside), numbers


def _replicated_leaves(updates: Sequence[VariableUpdate]) -> list[tf.Tensor]:
    return [
        leaf
        for update in updates
        for leaf in update.leaves
        if update.transfer(leaf) is Transfer.REPLICATED
    ]
