"""Tables whose rows are on parameter servers.

Each server has the same objects that a worker has where rows are in workers: id maps, arrays of
rows, counts. They are made in the graph of what runs there, under names that are the same for all
workers, and whatever is done to them is one call under the server's mutex.
"""

from __future__ import annotations

import contextlib
import re
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.collectives import Collectives
from strategies.collectives.single_worker import in_single_worker_scope
from strategies.embedding.lookup.prefetch_queue import PrefetchQueue
from strategies.embedding.lookup.router import Found, check_sizes, of_all_workers
from strategies.embedding.lookup.traffic import TrafficCounter
from strategies.embedding.shard.hashing import shard_of
from strategies.embedding.shard.row_store import RowStore
from strategies.embedding.shard.shard import Group, TableShard, TableSpecs
from strategies.ps.client import Server
from strategies.ps.extended import ServerExtended
from strategies.variables.growable_array import GrowableArray
from strategies.variables.sparse_variable import ActiveRows, SparseVariable

# Not a part of any other variable's name.
_NAME = "rows_of_this_server"


class RemoteTableShard(TableShard):
    """What one server has of the tables.

    Args:
      extended: of the strategy.
      server: the server.
      wanted: what the tables are made from.
      name: of the layer, the same on all workers.
    """

    def __init__(self, extended: ServerExtended, server: Server, wanted: TableSpecs, name: str):
        self._extended = extended
        self._server = server.new_connection()
        self._in_step_with = server
        self._name = name
        self._slots: dict[tuple[int, str], GrowableArray] = {}
        with self._building("tables"):
            count = len(extended.servers)
            self._variables = _variables(wanted, count)
            super().__init__(server.number, count, wanted, self._variables)
        # The same variables again, for changes together with those of the rest of the model.
        with self._again("tables"):
            self.variables = _variables(wanted, count)

    @property
    def is_mine(self) -> bool:
        """Whether it is this worker that saves what is here, and restores it."""
        return self._extended.servers.is_leader_of(self.number)

    def _scope(self, what: str) -> str:
        return re.sub(r"[^A-Za-z0-9_./-]", "_", f"{self._name}/{what}/")

    @contextlib.contextmanager
    def _again(self, what: str) -> Iterator[None]:
        """Variables that are made in the block are those that were made under this name."""
        with self._in_step_with.building(), tf.name_scope(self._scope(what)):
            yield

    @contextlib.contextmanager
    def _building(self, what: str) -> Iterator[None]:
        """Variables that are made in the block are the server's, whichever worker comes first."""
        name = self._scope(what)
        with self._server.building():
            known = len(self._server.graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES))
            with tf.name_scope(name):
                yield
            made = self._server.graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)

        def initialize() -> list[tf.Tensor]:
            # All are made under one lock, so what holds for one holds for all.
            tf.cond(made[-1].is_initialized(), lambda: False, lambda: _initialized(made[known:]))
            return []

        self._server.run(self._server.locked(initialize)[0])

    def call(self, key: Any, function: Callable, *arrays: Any) -> Any:
        """Returns what a function of tensors gives on the server, as one change there."""
        arrays = tuple(np.asarray(array) for array in arrays)

        def build() -> tuple[list[tf.Tensor], tf.Operation, list[tf.Tensor], list[Any]]:
            feeds = [
                tf.compat.v1.placeholder(array.dtype, [None, *array.shape[1:]][: array.ndim])
                for array in arrays
            ]
            structure: list[Any] = []

            def body() -> list[tf.Tensor]:
                structure.append(function(*feeds))
                return [] if structure[-1] is None else tf.nest.flatten(structure[-1])

            done, results = self._server.locked(body)
            return feeds, done, results, structure

        feeds, done, results, structure = self._server.once((self._name, key), build)
        values, _ = self._server.run([results, done], dict(zip(feeds, arrays, strict=True)))
        return None if structure[-1] is None else tf.nest.pack_sequence_as(structure[-1], values)

    def new_slot(self, group: Group, name: str, row: np.ndarray) -> SparseVariable:
        """Returns a new slot variable of the tables of a group."""
        variable, again, width = self._variables[group], self.variables[group], group.width
        rows = self._rows_of(width, name)
        with self._building(f"{width}/{name}"):
            slot = SparseVariable(variable.view, row, False, _NAME, None, rows)
        variable.add_slot(name, slot)
        with self._again(f"{width}/{name}/rows"):
            rows = GrowableArray((width,), tf.float32, expected=variable.view.expected)
        with self._again(f"{width}/{name}"):
            return SparseVariable(again.view, row, False, _NAME, None, rows)

    def expect(self, store: RowStore, name: str) -> None:
        """Sees to it that a slot variable has rows, before the optimizer makes it."""
        store.expect(name, lambda: self._rows_of(store.width, name))

    def _rows_of(self, width: int, slot: str) -> GrowableArray:
        """Returns the rows of a slot variable, the same ones whoever asks first."""
        if (width, slot) not in self._slots:
            with self._building(f"{width}/{slot}/rows"):
                expected = self._variables[Group(width)].view.expected
                self._slots[width, slot] = GrowableArray((width,), tf.float32, 0.0, expected)
        return self._slots[width, slot]

    def drain(self) -> None:
        """Waits until all that this worker changed has arrived."""
        self._extended.update_mode.drain()

    def meet(self) -> None:
        """Waits until no worker trains.

        Raises:
          ValueError: if one worker alone calls it, in a callback of the first worker.
        """
        if self._extended.workers.size > 1 and in_single_worker_scope():
            raise ValueError(
                "What is done to all rows on parameter servers, all workers do together. "
                "Received: a callback of the first worker. Call it on every worker."
            )
        self.drain()
        self._extended.workers.all_gather(tf.constant([0]))


def _variables(wanted: TableSpecs, count: int) -> dict[Group, SparseVariable]:
    """Returns what has the rows' values of one of so many servers, for each group."""
    return {
        group: SparseVariable(
            ActiveRows(wanted.expected(group, count)),
            np.zeros(group.width, np.float32),
            True,
            _NAME,
            None,
        )
        for group in wanted.groups
    }


def _initialized(variables: Sequence[tf.Variable]) -> bool:
    for variable in variables:
        # Not `assign`, which is of the rows in view where the variable has rows.
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=variable.initial_value)
    return True


class ServerRouter:
    """The way to the servers that have the rows.

    Where workers go in step, the ids of all of them come to a server as those of one, so that
    who is admitted does not depend on who was first.

    Args:
      extended: of the strategy.
      homes: what the servers have.
      group: of the tables.
    """

    def __init__(self, extended: ServerExtended, homes: Sequence[RemoteTableShard], group: Group):
        self._extended = extended
        self._homes = homes
        self._group = group
        self._width = group.width
        self._bounds = homes[0].finders[group].bounds
        self.sent = TrafficCounter(homes[0].finders[group].count, True)
        self._are_in_step = extended.in_step and extended.workers.size > 1
        self._ahead: weakref.WeakSet[PrefetchQueue] = weakref.WeakSet()

    @property
    def _workers(self) -> Collectives:
        return self._extended.workers

    def found(self, keys: tf.Tensor, training: bool, begins: bool) -> Found:
        """Returns the rows of keys."""
        away = self.sent.away(keys, lambda: keys[:0])
        self.sent.looked_up(away, training)
        adding, counting = training, begins
        if training and self._are_in_step:
            done = self._added(self._workers.all_gather(keys), begins)
            with tf.control_dependencies([done]):
                keys = tf.identity(keys)
            adding = counting = False

        def find(keys: np.ndarray, owners: np.ndarray) -> list[np.ndarray]:
            answer = self._taken(keys, counting) if adding else None
            if answer is not None:
                return [*answer, np.ones([], np.int64)]
            return [*self._find(keys, owners, adding, counting), np.zeros([], np.int64)]

        kinds = [tf.int64, tf.float32, tf.int64, tf.int64]
        arguments = [keys, shard_of(keys[:, 1], len(self._homes))]
        rows, values, sizes, is_prefetched = self._extended.ordered_caller.call(
            find, arguments, kinds
        )
        if adding:
            self.sent.prefetched(away * tf.ensure_shape(is_prefetched, []))
        if training and self._bounds:
            check_sizes(self._bounds, tf.ensure_shape(sizes, [len(self._bounds)]))
        values = tf.ensure_shape(values, [None, self._width])

        def forth(gradient: tf.Tensor) -> tf.Tensor:
            self.sent.trained(away)
            return gradient

        return Found(values, tf.ensure_shape(rows, [None]), True, forth)

    def total(self, gradient: tf.IndexedSlices) -> tf.IndexedSlices:
        """Returns the gradient of all workers that go in step."""
        if not self._are_in_step:
            return gradient
        return of_all_workers(self._workers, gradient)

    def ask(self, ahead: PrefetchQueue, keys: np.ndarray, begins: bool) -> None:
        """Asks for the rows of keys that a step will look up; does not wait for them."""
        self._ahead.add(ahead)
        owners = shard_of(tf.constant(keys[:, 1]), len(self._homes)).numpy()
        ahead.ask(keys, begins, lambda: self._find(keys, owners, True, begins))

    def forget(self) -> None:
        """Sees to it that no step uses what was asked for until now."""
        for ahead in list(self._ahead):
            ahead.forget()

    def _taken(self, keys: np.ndarray, begins: bool) -> list[np.ndarray] | None:
        """Returns the rows of keys if they were asked for."""
        ahead = list(self._ahead)
        for each in ahead:
            if (answer := each.take(keys, begins)) is not None:
                return answer
        for each in ahead:
            each.check()
        return None

    def _added(self, keys: tf.Tensor, begins: bool) -> tf.Tensor:
        """Gives the ids of all workers rows; returns what is there when all have theirs."""

        def add(keys: np.ndarray, owners: np.ndarray) -> list[np.ndarray]:
            def at(server: Server) -> None:
                home = self._homes[server.number]
                finder = home.finders[self._group]
                if home.is_mine:
                    mine = keys[owners == home.number]
                    key = ("add", self._width, begins, *finder.slots)
                    home.call(key, lambda keys: finder(keys, True, begins)[0], mine)

            self._extended.servers.each(at)
            return [np.zeros([1], np.int64)]

        arguments = [keys, shard_of(keys[:, 1], len(self._homes))]
        (done,) = self._extended.ordered_caller.call(add, arguments, [tf.int64])
        return self._workers.all_gather(tf.ensure_shape(done, [1]))

    def _find(
        self, keys: np.ndarray, owners: np.ndarray, adding: bool, counting: bool
    ) -> list[np.ndarray]:
        def at(server: Server) -> list[np.ndarray]:
            home = self._homes[server.number]
            finder = home.finders[self._group]
            return home.call(
                ("find", self._width, adding, counting, *finder.slots),
                lambda keys: [*finder(keys, adding, counting), finder.sizes()],
                keys[owners == home.number],
            )

        count = len(self._homes)
        rows = np.empty([len(keys)], np.int64)
        values = np.empty([len(keys), self._width], np.float32)
        sizes = np.zeros([len(self._bounds)], np.int64)
        for number, answer in enumerate(self._extended.servers.each(at)):
            mine = owners == number
            rows[mine] = np.where(answer[0] < 0, -1, answer[0] * count + number)
            values[mine] = answer[1]
            sizes += answer[2]
        return [rows, values, sizes]
