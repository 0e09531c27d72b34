"""The tables of a layer, grouped by where their rows are, and one shard of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from strategies.embedding.config import FeatureConfig, TableConfig
from strategies.embedding.inputs import Bags
from strategies.embedding.shard.capacity import split_capacity
from strategies.embedding.shard.hashing import shard_of
from strategies.embedding.shard.lookup import ShardLookup
from strategies.embedding.shard.row_store import RowStore
from strategies.embedding.shard.table import Table
from strategies.variables.growable_array import GrowableArray
from strategies.variables.sparse_variable import SparseVariable


class Group(NamedTuple):
    """Tables whose rows are in one store.

    Attributes:
      width: width of their rows.
      table: name of the only table, if it has an optimizer of its own; else None.
      is_replicated: whether each worker has all of their rows.
    """

    width: int
    table: str | None = None
    is_replicated: bool = False


@dataclass(frozen=True)
class TableSpecs:
    """Specification of a layer's tables.

    Attributes:
      features: the features that look up in them.
      initial: for each table's name, a function from ids to their initial rows.
      unseen: "initial" or "zeros", the values of an id that has no row.
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
            group = Group(config.output_dim, own, config.is_replicated)
            groups.setdefault(group, []).append(config)
        return groups

    def ids(self, group: Group, bags: Mapping[str, Bags]) -> list[tf.Tensor]:
        """Returns the ids of each table of a group, those of its features one after the other."""
        return [
            tf.concat([bags[feature].ids for feature in self.features_of(config.name)], 0)
            for config in self.groups[group]
        ]

    def features_of(self, table: str) -> list[str]:
        """Returns the features that look up in a table."""
        return [feature for feature, config in self.features.items() if config.table.name == table]

    def expected_rows(self, group: Group, num_shards: int) -> int | None:
        """Returns the expected number of a group's rows in a shard; None if it is unknown.

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
        # A hash gives one shard more than another, by so much at most; and one row is shared.
        more = 0.0 if num_shards == 1 else sum(6 * math.sqrt(part) for part in parts)
        return math.ceil(sum(parts) + more) + len(parts)


class TableShard:
    """One shard of a layer's tables, in this worker's memory.

    Args:
      index: index of the shard.
      num_shards: number of shards.
      specs: specification of the tables.
      variables: for each group, what holds the values of its rows.

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
        variables: Mapping[Group, SparseVariable],
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
        # In an order that does not depend on how they are grouped, for what is saved.
        self.tables = dict(sorted(self.tables.items()))

    @property
    def is_local_owner(self) -> bool:
        """Whether it is this worker that saves and restores the shard."""
        return True

    def _capacity(self, config: TableConfig) -> int | None:
        if config.overflow == "error" or config.input_dim is None:
            return None
        return split_capacity(config.input_dim, [0] * self.num_shards)[self.index]

    def _adopter(self, store: RowStore) -> Callable[[str, SparseVariable], None]:
        def adopt(name: str, slot: SparseVariable) -> None:
            if store.adopt_slot(name, slot):
                key = ("reset", store.width, name)
                self.call(key, lambda: store.reset_free_rows(name))

        return adopt

    def has(self, name: str, ids: np.ndarray) -> np.ndarray:
        """Returns a mask of the ids whose rows of a table are in this shard."""
        if self.tables[name].config.is_replicated:
            return np.ones(len(ids), bool)
        return self.owns(ids)

    def owns(self, ids: np.ndarray) -> np.ndarray:
        """Returns a mask of the ids whose rows are saved from this shard."""
        return shard_of(tf.constant(ids, tf.int64), self.num_shards).numpy() == self.index

    def call(self, key: Any, function: Callable[..., Any], *arrays: Any) -> Any:
        """Calls a function of tensors where the rows are; returns NumPy arrays.

        Args:
          key: tells it from other functions; what it captures is part of that.
          function: makes TensorFlow's operations, returns tensors in any structure.
          *arrays: its arguments.
        """
        del key
        with tf.init_scope():
            result = function(*(tf.constant(array) for array in arrays))
        return None if result is None else tf.nest.map_structure(np.asarray, result)

    def expect_slot(self, store: RowStore, name: str, initial: Any = 0.0) -> None:
        """Makes the rows of a slot variable, before the optimizer makes the variable.

        Args:
          store: holds the rows.
          name: name of the slot variable.
          initial: what new rows are set to.
        """
        store.expect_slot(
            name, lambda: GrowableArray((store.width,), tf.float32, initial, store.view.expected)
        )

    def drain(self) -> None:
        """Waits until the changes of this worker are applied; here they are."""

    def barrier(self) -> None:
        """Waits until no worker trains; workers that have the rows do all things together."""
