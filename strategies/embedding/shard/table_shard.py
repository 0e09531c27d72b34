"""Specification of a layer's tables, grouped by the store of their rows, and a shard of them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from strategies.collectives import Collectives
from strategies.embedding.config import FeatureConfig, TableConfig
from strategies.embedding.inputs import Bags
from strategies.embedding.shard.capacity import split_capacity
from strategies.embedding.shard.hashing import shard_of
from strategies.embedding.shard.row_store import RowStore
from strategies.embedding.shard.server_writer import ServerWriter
from strategies.embedding.shard.shard_lookup import ShardLookup
from strategies.embedding.shard.step_times import StepTimes
from strategies.embedding.shard.table import STATISTICS, Table
from strategies.variables.rounded_array import FLOAT32, ArrayDtypes
from strategies.variables.row_variable import RowVariable
from tf_config.launcher.progress_file import Sample


class Group(NamedTuple):
    """Key of a group of tables whose rows share a store.

    Attributes:
      width: width of the rows.
      table: name of the only table if it has its own optimizer; otherwise None.
      is_replicated: whether each worker has a copy of all rows.
      dtypes: dtypes in which rows and slot variables are stored.
      exchange_dtype: dtype in which rows and gradients are exchanged.
    """

    width: int
    table: str | None = None
    is_replicated: bool = False
    dtypes: ArrayDtypes = FLOAT32
    exchange_dtype: str = "float32"

    @property
    def label(self) -> str:
        """Name of the group among those that the model's optimizer trains.

        >>> Group(16).label, Group(16, dtypes=ArrayDtypes("bfloat16")).label
        ('16', '16-bfloat16-float32-float32')
        """
        dtypes = (*self.dtypes, self.exchange_dtype)
        is_plain = set(dtypes) == {"float32"}
        return str(self.width) if is_plain else "-".join([str(self.width), *dtypes])


@dataclass(frozen=True)
class TableSpecs:
    """Specification of a layer's tables.

    Attributes:
      features: features of the layer by name.
      initial: function from ids to their initial rows, by the table's name.
      unseen: "initial" or "zeros", the values of an id without a row.
    """

    features: Mapping[str, FeatureConfig]
    initial: Mapping[str, Callable[[tf.Tensor], tf.Tensor]]
    unseen: str

    @property
    def groups(self) -> dict[Group, list[TableConfig]]:
        """The tables by group, in the order of the features."""
        groups: dict[Group, list[TableConfig]] = {}
        for config in {one.table.name: one.table for one in self.features.values()}.values():
            own = None if config.optimizer is None else config.name
            group = Group(
                config.output_dim,
                own,
                config.is_replicated,
                ArrayDtypes(config.row_dtype, config.slot_dtype),
                config.exchange_dtype,
            )
            groups.setdefault(group, []).append(config)
        return groups

    def ids(self, group: Group, bags: Mapping[str, Bags]) -> list[tf.Tensor]:
        """Returns the concatenated ids of the features of each table of a group."""
        return [
            tf.concat([bags[feature].ids for feature in self.features_of(config.name)], 0)
            for config in self.groups[group]
        ]

    def features_of(self, table: str) -> list[str]:
        """Returns the names of the features that use a table."""
        return [feature for feature, config in self.features.items() if config.table.name == table]

    def evicts_in_steps(self, group: Group) -> bool:
        """Whether rows of a group's tables are removed during training."""
        return any(config.evicts_in_steps for config in self.groups[group])

    def expected_rows(self, group: Group, num_shards: int) -> int | None:
        """Returns the expected number of a group's rows in a shard; None if unknown.

        >>> table = TableConfig("users", 16, input_dim=1_000_000)
        >>> specs = TableSpecs({"user": FeatureConfig(table)}, {}, "initial")
        >>> specs.expected_rows(Group(16), 1), specs.expected_rows(Group(16), 4)
        (1000001, 253001)
        """
        num_shards = 1 if group.is_replicated else num_shards
        bounds = [config.input_dim for config in self.groups[group]]
        if None in bounds:
            return None
        parts = [bound / num_shards for bound in bounds if bound is not None]
        # A margin for the uneven hash, and one shared row per table.
        margin = 0.0 if num_shards == 1 else sum(6 * math.sqrt(part) for part in parts)
        return math.ceil(sum(parts) + margin) + len(parts)


class TableShard:
    """One shard of a layer's tables, in this worker's memory.

    Args:
      index: index of the shard.
      num_shards: number of shards.
      specs: specification of the tables.
      variables: variable of each group's rows.

    Attributes:
      index: index of the shard.
      num_shards: number of shards.
      tables: the tables by name.
      lookups: the lookup of each group.
    """

    def __init__(
        self,
        index: int,
        num_shards: int,
        specs: TableSpecs,
        variables: Mapping[Group, RowVariable],
    ):
        self.index = index
        self.num_shards = num_shards
        self.tables: dict[str, Table] = {}
        self.lookups: dict[Group, ShardLookup] = {}
        for group, configs in specs.groups.items():
            store = RowStore(variables[group])
            tables = [
                Table(each, store, specs.initial[each.name], self._capacity(each))
                for each in configs
            ]
            self.tables.update({each.config.name: each for each in tables})
            self.lookups[group] = ShardLookup(store, tables, specs.unseen)
            variables[group].on_slot(self._adopter(store))
        # Saved files need an order that does not depend on the groups.
        self.tables = dict(sorted(self.tables.items()))

    @property
    def is_local_owner(self) -> bool:
        """Whether this worker saves and restores the shard."""
        return True

    @property
    def writer(self) -> ServerWriter | None:
        """Writes files on the server that stores the rows; None if this process stores them."""
        return None

    def _capacity(self, config: TableConfig) -> int | None:
        if config.overflow == "error" or config.input_dim is None:
            return None
        return split_capacity(config.input_dim, [0] * self.num_shards)[self.index]

    def _adopter(self, store: RowStore) -> Callable[[str, RowVariable], None]:
        def adopt(name: str, slot: RowVariable) -> None:
            if store.adopt_slot(name, slot):
                self.call(lambda: store.reset_free_rows(name))

        return adopt

    def has(self, name: str, ids: np.ndarray) -> np.ndarray:
        """Returns a mask of the ids whose rows belong to this shard of a table."""
        if self.tables[name].config.is_replicated:
            return np.ones(len(ids), bool)
        return self.owns(ids)

    def owns(self, ids: np.ndarray) -> np.ndarray:
        """Returns a mask of the ids whose rows are saved from this shard."""
        return shard_of(tf.constant(ids, tf.int64), self.num_shards).numpy() == self.index

    def call(
        self,
        function: Callable[..., Any],
        *arrays: Any,
        state: Iterable[Hashable] = (),
        idempotent: bool = False,
    ) -> Any:
        """Calls a function of tensors on the task that stores the rows; returns NumPy arrays.

        Args:
          function: function of TensorFlow operations that returns any structure of tensors. It must
            not capture dictionaries or arrays, so that it is built only once; see `function_key`.
          *arrays: arguments of the function.
          state: the parts of the captured objects' state that may change the function's graph, such
            as the names of the slot variables that it updates.
          idempotent: whether it may be called again if the response is lost with the connection, as
            is the case if it only reads.
        """
        del state, idempotent
        with tf.init_scope():
            result = function(*(tf.constant(array) for array in arrays))
        return None if result is None else tf.nest.map_structure(np.asarray, result)

    def call_on_table(
        self,
        name: str,
        function: Callable[..., Any],
        *arrays: Any,
        state: Iterable[Hashable] = (),
        idempotent: bool = False,
    ) -> Any:
        """Calls a function of a table and of tensors; see `call`.

        Args:
          name: name of the table.
          function: function whose first argument is the table. Its results must have the same
            structure and dtypes for all tables of a group, which may share a graph.
          *arrays: see `call`.
          state: see `call`.
          idempotent: see `call`.
        """
        return self.call(
            functools.partial(function, self.tables[name]),
            *arrays,
            state=state,
            idempotent=idempotent,
        )

    def samples(self) -> Iterable[Sample]:
        """Returns numbers of the tables' rows, for the page of metrics.

        Those of a server are not read, because each call would take its lock from the training.
        """
        for name, table in self.tables.items():
            counts = dict(zip(STATISTICS, table.counts.numpy().tolist(), strict=True))
            yield Sample("embedding_rows", int(table.map.size()), (name,))
            yield Sample("embedding_admitted_total", counts["new"], (name,))
            yield Sample("embedding_evicted_total", counts["evicted"], (name,))

    def expect_slot(self, store: RowStore, name: str, initial: Any = 0.0) -> None:
        """Creates the rows of a slot variable before the optimizer creates the variable.

        Args:
          store: store of the rows.
          name: name of the slot variable in the file that it is restored from.
          initial: initial value of new rows.
        """
        store.expect_slot(name, lambda _: store.variable.make_slot_array(initial))

    def forget_former_slots(self) -> None:
        """Removes the slot variables of deleted optimizers, which must not be restored."""
        for lookup in self.lookups.values():
            lookup.variable.remove_former_slots()

    def agree_on_time(self, collectives: Collectives) -> Sequence[tf.Tensor]:
        """Returns the first worker's time if a rule depends on it; all workers must call it."""
        if not any(lookup.uses_time for lookup in self.lookups.values()):
            return []
        with tf.init_scope():
            return [collectives.broadcast(StepTimes.now())]

    def drain(self) -> None:
        """Waits until this worker's updates are applied; on a worker, they already are."""

    def barrier(self) -> None:
        """Waits until no worker trains; not needed here: workers that store rows run in step."""
