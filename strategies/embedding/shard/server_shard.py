"""Shards of tables on parameter servers.

Each server has the same objects as a worker that stores rows: id maps, arrays of rows and counters.
They are created in the server's graph, with names that are the same on all workers, and every
operation on them is a single call under the server's lock.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.collectives import Collectives
from strategies.collectives.single_worker import in_single_worker_scope
from strategies.embedding.shard.row_store import RowStore
from strategies.embedding.shard.server_writer import ServerWriter
from strategies.embedding.shard.table import Table
from strategies.embedding.shard.table_shard import Group, TableShard, TableSpecs
from strategies.ps.barrier import Barrier
from strategies.ps.connection import ServerConnection
from strategies.ps.extended import ParameterServerExtended
from strategies.ps.sequence_number import SequenceNumber
from strategies.variables.growable_array import GrowableArray
from strategies.variables.row_variable import RowVariable
from strategies.variables.row_view import RowView
from tf_config.launcher.progress_file import Sample

# Must not occur in the name of any other variable.
_NAME = "rows_of_this_server"


@dataclass(frozen=True)
class CallSequence:
    """Sequence of calls to a server of which each has its effect exactly once.

    Attributes:
      last: number of the last call that the server has completed.
      numbers: numbers of future calls.
    """

    last: SequenceNumber
    numbers: Iterator[int]


class RemoteTableShard(TableShard):
    """One shard of a layer's tables, on a parameter server.

    Args:
      extended: `extended` of the strategy.
      server: the server.
      specs: specification of the tables.
      name: name of the layer's rows, the same on all workers.
    """

    def __init__(
        self,
        extended: ParameterServerExtended,
        server: ServerConnection,
        specs: TableSpecs,
        name: str,
    ):
        self._extended = extended
        self._server = server.new_connection()
        self._in_step_with = server
        self._name = name
        self._slots: dict[tuple[Group, str], GrowableArray] = {}
        with self._create_variables("tables"):
            num_shards = len(extended.servers)
            is_restarted = server.restarts is not None
            self._variables = _variables(specs, num_shards, is_restarted)
            super().__init__(server.number, num_shards, specs, self._variables)
        # The same variables again, for updates together with the rest of the model.
        with self._reuse_variables("tables"):
            self.variables = _variables(specs, num_shards, is_restarted)

    @property
    def is_local_owner(self) -> bool:
        """Whether this worker saves and restores the shard."""
        return self._extended.servers.is_leader_of(self.index)

    def _scope(self, what: str) -> str:
        return re.sub(r"[^A-Za-z0-9_./-]", "_", f"{self._name}/{what}/")

    @contextlib.contextmanager
    def _reuse_variables(self, what: str) -> Iterator[None]:
        """Makes the block create handles of variables that already exist under this name."""
        with self._in_step_with.building(), tf.name_scope(self._scope(what)):
            yield

    @contextlib.contextmanager
    def _create_variables(self, what: str) -> Iterator[None]:
        """Makes the block create variables on the server; the first worker initializes them."""
        name = self._scope(what)
        with self._server.building():
            before = len(self._server.graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES))
            with tf.name_scope(name):
                yield
            after = self._server.graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)

        def initialize() -> list[tf.Tensor]:
            # All are initialized under one lock, so checking one of them is enough.
            tf.cond(after[-1].is_initialized(), lambda: False, lambda: _initialize(after[before:]))
            return []

        self._server.run(self._server.locked(initialize)[0])

    @property
    def writer(self) -> ServerWriter:
        """Writes files on the server."""
        return ServerWriter(self.call)

    def samples(self) -> Iterable[Sample]:
        """Returns no numbers; see `TableShard.samples`."""
        return ()

    def call(
        self,
        function: Callable[..., Any],
        *arrays: Any,
        state: Iterable[Hashable] = (),
        idempotent: bool = False,
        finish: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Calls a function of tensors on the server atomically; see `TableShard.call`.

        Args:
          function: see `TableShard.call`.
          *arrays: see `TableShard.call`.
          state: see `TableShard.call`.
          idempotent: see `TableShard.call`.
          finish: function of what `function` returns; runs on the server as well, but without the
            lock, and its results are returned instead.
        """
        arrays = tuple(np.asarray(array) for array in arrays)
        # `build` captures the specs, not the arrays, because its cache key has all captured values.
        specs = [
            (tf.as_dtype(array.dtype), (None, *array.shape[1:])[: array.ndim]) for array in arrays
        ]

        def build() -> tuple[list[tf.Tensor], tf.Operation, list[tf.Tensor], list[Any]]:
            feeds = [tf.compat.v1.placeholder(*spec) for spec in specs]
            structure: list[Any] = []

            def body() -> list[tf.Tensor]:
                structure.append(function(*feeds))
                return [] if structure[-1] is None else tf.nest.flatten(structure[-1])

            done, results = self._server.locked(body)
            if finish is not None:
                with self._server.building(), tf.control_dependencies([done]):
                    unlocked = tf.nest.map_structure(
                        tf.identity, tf.nest.pack_sequence_as(structure[-1], results)
                    )
                    structure.append(finish(unlocked))
                    results = tf.nest.flatten(structure[-1])
            return feeds, done, results, structure

        # If the server is restarted, the call is repeated, because what it did is lost unless the
        # server's last save has it. Functions that set rows may be called twice.
        feeds, done, results, structure = self._server.build_once(build, state)
        values, _ = self._server.run(
            [results, done], dict(zip(feeds, arrays, strict=True)), idempotent=idempotent
        )
        return None if structure[-1] is None else tf.nest.pack_sequence_as(structure[-1], values)

    def call_on_table(
        self,
        name: str,
        function: Callable[..., Any],
        *arrays: Any,
        state: Iterable[Hashable] = (),
        idempotent: bool = False,
    ) -> Any:
        """Calls a function of a table on the server; see `TableShard.call_on_table`.

        The tables of a group share one graph, which gets the position of the table. With a graph
        for each of them, the time for an operation on all tables would grow with the square of
        their number, because TensorFlow copies all functions whenever a graph is extended.
        """
        table = self.tables[name]
        alike = [each for each in self.tables.values() if each.store is table.store]

        def call(position: tf.Tensor, *tensors: tf.Tensor) -> Any:
            results = []

            def branch(each: Table) -> Any:
                results.append(function(each, *tensors))
                return tf.zeros([]) if results[-1] is None else results[-1]

            chosen = tf.switch_case(position, [functools.partial(branch, each) for each in alike])
            return None if results[-1] is None else chosen

        position = np.int32(alike.index(table))
        return self.call(call, position, *arrays, state=state, idempotent=idempotent)

    def new_sequence(self) -> CallSequence:
        """Returns a sequence of calls of which each has its effect exactly once."""
        with self._server.building():
            return CallSequence(SequenceNumber(), itertools.count(1))

    def call_once(
        self,
        sequence: CallSequence,
        function: Callable[..., tuple[Callable[[], None], Callable[[], Any]]],
        *arrays: Any,
        state: Iterable[Hashable] = (),
    ) -> Any:
        """Makes a change on the server once, even if the response is lost; returns what is read.

        See [Note: exactly-once updates] in ps/sequence_number.py.

        Args:
          sequence: sequence of the calls; one call must end before the next one begins.
          function: function of tensors that only reads, and returns two functions: one that makes
            the change, and one that is called after it, only reads, and returns what is read.
          *arrays: arguments of the function; see `call`.
          state: see `TableShard.call`.
        """
        last = sequence.last

        def change_and_read(number: tf.Tensor, *tensors: tf.Tensor) -> Any:
            change, read = function(*tensors)
            last.change_once(number, change)
            return read()

        number = np.int64(next(sequence.numbers))
        return self.call(change_and_read, number, *arrays, state=state, idempotent=True)

    def call_together(
        self,
        name: str,
        function: Callable[[tf.Tensor], tuple[list[tf.Tensor], list[tf.Tensor]]],
        rows: np.ndarray,
        dtypes: Sequence[tf.DType],
        state: Iterable[Hashable] = (),
    ) -> list[np.ndarray]:
        """Calls a function once on the server for all workers, all of which must call this method.

        Args:
          name: name of the function, the same on all workers.
          function: function of the concatenated arrays of all workers, in the order of their ranks.
            It returns tensors of the same length, of which each worker gets its own part, and
            tensors that all workers get.
          rows: this worker's array.
          dtypes: the dtypes of the returned tensors.
          state: the parts of the captured objects' state that may change the function's graph.
        """
        servers = self._extended.servers
        dtype, shape = tf.as_dtype(rows.dtype), rows.shape[1:]

        def call(inputs: Sequence[tf.Tensor]) -> list[list[tf.Tensor]]:
            inputs = [tf.ensure_shape(each, [None, *shape]) for each in inputs]
            sizes = tf.stack([tf.shape(each)[0] for each in inputs])
            by_row, common = function(tf.concat(inputs, 0))
            parts = zip(*(tf.split(each, sizes, num=servers.size) for each in by_row), strict=True)
            return [[*own, *common] for own in parts]

        def build() -> Barrier:
            return Barrier(
                self._server, f"{self._name}/{name}", servers.rank, servers.size, dtype,
                np.zeros([0, *shape], dtype.as_numpy_dtype), call, dtypes, lock=self._server.lock,
            )  # fmt: skip

        results, _ = self._server.build_once(build, state)(rows)
        return results

    def new_slot(self, group: Group, name: str, row: np.ndarray) -> RowVariable:
        """Creates a group's slot variable; returns a handle on the connection of model updates."""
        self.add_slot(group, name, row)
        again = self.variables[group]
        with self._reuse_variables(f"{group.label}/{name}/rows"):
            rows = again.make_slot_array(None)
        with self._reuse_variables(f"{group.label}/{name}"):
            return RowVariable(again.view, row, False, _NAME, None, rows)

    def add_slot(self, group: Group, name: str, row: np.ndarray) -> None:
        """Creates a group's slot variable."""
        variable = self._variables[group]
        rows = self._slot_array(group, name, row)
        with self._create_variables(f"{group.label}/{name}"):
            slot = RowVariable(variable.view, row, False, _NAME, None, rows)
        variable.add_slot(name, slot)

    def expect_slot(self, store: RowStore, name: str, initial: Any = 0.0) -> None:
        """Creates the rows of a slot variable before the optimizer creates the variable."""
        (group,) = (each for each, v in self._variables.items() if v is store.variable)
        store.expect_slot(name, lambda key: self._slot_array(group, key, initial))

    def forget_former_slots(self) -> None:
        """Collects deleted optimizers, so that their slot variables are recognized as former."""
        if any(variable.slots for variable in self._variables.values()):
            gc.collect()

    def share_optimizers(self, group: Group, variable: RowVariable) -> None:
        """Shares the record of optimizers of a worker's variable of a group with the shard."""
        self._variables[group].optimizers = variable.optimizers

    def _slot_array(self, group: Group, slot: str, initial: Any) -> GrowableArray:
        """Returns the rows of a slot variable, shared by all workers; creates them if necessary."""
        if (group, slot) not in self._slots:
            with self._create_variables(f"{group.label}/{slot}/rows"):
                self._slots[group, slot] = self._variables[group].make_slot_array(0.0)
        self._slots[group, slot].fill = np.broadcast_to(initial, (group.width,))
        return self._slots[group, slot]

    def agree_on_time(self, collectives: Collectives) -> Sequence[tf.Tensor]:
        """Returns nothing: each server reads its own clock."""
        return []

    def drain(self) -> None:
        """Waits until this worker's updates are applied."""
        self._extended.update_mode.drain()

    def barrier(self) -> None:
        """Waits until no worker trains; all workers must call it.

        Raises:
          ValueError: if only the first worker calls it, in a callback.
        """
        if self._extended.workers.size > 1 and in_single_worker_scope():
            raise ValueError(
                "All workers must take part in an operation on all rows of the parameter servers. "
                "Received: a callback that runs on the first worker only. Call it on every worker."
            )
        self.drain()
        for server in self._extended.servers.servers:
            # What depends on the rows of a server, such as the bases of deltas, may be outdated.
            server.notice_restart()
        self._extended.workers.all_gather(tf.constant([0]))


def _variables(specs: TableSpecs, num_shards: int, is_restarted: bool) -> dict[Group, RowVariable]:
    """Returns the variables for the values of a shard's rows, by group.

    Args:
      specs: specification of the tables.
      num_shards: number of shards.
      is_restarted: whether the server is restarted in place if it is lost.
    """
    return {
        group: RowVariable(
            RowView(
                specs.expected_rows(group, num_shards),
                counts_frees=is_restarted or specs.evicts_in_steps(group),
            ),
            np.zeros(group.width, np.float32),
            True,
            _NAME,
            None,
            dtypes=group.dtypes,
        )
        for group in specs.groups
    }


def _initialize(variables: Sequence[tf.Variable]) -> bool:
    for variable in variables:
        # Not `assign`, which sets the rows in view if the variable has rows.
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=variable.initial_value)
    return True
