"""Tables whose rows are in one place, and what is done with them there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from strategies.embedding.config import FeatureConfig, TableConfig
from strategies.embedding.inputs import Bags
from strategies.embedding.shard.hashing import shard_of
from strategies.embedding.shard.lookup import ShardLookup
from strategies.embedding.shard.overflow import Overflow, parts_of
from strategies.embedding.shard.row_store import RowStore
from strategies.embedding.shard.table import Table
from strategies.variables.growable_array import GrowableArray
from strategies.variables.sparse_variable import SparseVariable


class Group(NamedTuple):
    """Tables with their rows together.

    Attributes:
      width: of their rows.
      table: the only one, if it has an optimizer of its own; else None.
      is_replicated: whether all workers have all of them.
    """

    width: int
    table: str | None = None
    is_replicated: bool = False


@dataclass(frozen=True)
class TableSpecs:
    """What a layer's tables are made from.

    Attributes:
      features: which look up in them.
      initial: for each table's name, what makes first rows.
      unseen: "initial" or "zeros", what an id has that has no row.
    """

    features: Mapping[str, FeatureConfig]
    initial: Mapping[str, Callable[[tf.Tensor], tf.Tensor]]
    unseen: str

    @property
    def groups(self) -> dict[Group, list[TableConfig]]:
        """The tables that have their rows together, in the order of the features."""
        groups: dict[Group, list[TableConfig]] = {}
        for config in {one.table.name: one.table for one in self.features.values()}.values():
            apart = None if config.optimizer is None else config.name
            group = Group(config.output_dim, apart, config.is_replicated)
            groups.setdefault(group, []).append(config)
        return groups

    def ids(self, group: Group, bags: Mapping[str, Bags]) -> list[tf.Tensor]:
        """Returns what is looked up in each table of a group, of its features one by one."""
        return [
            tf.concat([bags[feature].ids for feature in self.features_of(config.name)], 0)
            for config in self.groups[group]
        ]

    def features_of(self, table: str) -> list[str]:
        """Returns the features that look up in a table."""
        return [feature for feature, config in self.features.items() if config.table.name == table]

    def expected(self, group: Group, places: int) -> int | None:
        """Returns how many rows a group will have in each of so many places; None: who knows?

        >>> table = TableConfig("users", 16, input_dim=1_000_000)
        >>> wanted = Wanted({"user": FeatureConfig(table)}, {}, "initial")
        >>> wanted.expected(Group(16), 1), wanted.expected(Group(16), 4)
        (1000001, 253001)
        """
        places = 1 if group.is_replicated else places
        bounds = [config.input_dim for config in self.groups[group]]
        if None in bounds:
            return None
        parts = [bound / places for bound in bounds if bound is not None]
        # A hash gives one place more than another, by so much at most; and one row is shared.
        more = 0.0 if places == 1 else sum(6 * math.sqrt(part) for part in parts)
        return math.ceil(sum(parts) + more) + len(parts)


class TableShard:
    """What this worker's memory has of the tables.

    Args:
      number: of the place.
      count: how many places there are.
      wanted: what the tables are made from.
      variables: for each group, what has the rows' values.

    Attributes:
      number: of the place.
      count: how many places there are.
      tables: by name.
      finders: of the tables of a group.
    """

    def __init__(
        self, number: int, count: int, wanted: TableSpecs, variables: Mapping[Group, SparseVariable]
    ):
        self.number = number
        self.tables: dict[str, Table] = {}
        self.finders: dict[Group, ShardLookup] = {}
        self.count = count
        for group, configs in wanted.groups.items():
            store = RowStore(variables[group])
            tables = [
                Table(each, store, wanted.initial[each.name], self._overflow(each, store))
                for each in configs
            ]
            self.tables.update({each.config.name: each for each in tables})
            self.finders[group] = ShardLookup(store, tables, wanted.unseen)
            variables[group].on_slot(self._adopting(store))
        # In an order that does not depend on how they are grouped, for what is saved.
        self.tables = dict(sorted(self.tables.items()))

    @property
    def is_mine(self) -> bool:
        """Whether it is this worker that saves what is here, and restores it."""
        return True

    def _overflow(self, config: TableConfig, store: RowStore) -> Overflow | None:
        if config.overflow == "error" or config.input_dim is None:
            return None
        parts = parts_of(config.input_dim, [0] * self.count)
        return Overflow(store, parts[self.number])

    def _adopting(self, store: RowStore) -> Callable[[str, SparseVariable], None]:
        def adopt(name: str, slot: SparseVariable) -> None:
            if store.adopt(name, slot):
                key = ("reset", store.width, name)
                self.call(key, lambda: store.reset_free(name))

        return adopt

    def has(self, name: str, ids: np.ndarray) -> np.ndarray:
        """Returns which ids' rows of a table are here."""
        if self.tables[name].config.is_replicated:
            return np.ones(len(ids), bool)
        return self.owns(ids)

    def owns(self, ids: np.ndarray) -> np.ndarray:
        """Returns which ids' rows are saved from here."""
        return shard_of(tf.constant(ids, tf.int64), self.count).numpy() == self.number

    def call(self, key: Any, function: Callable, *arrays: Any) -> Any:
        """Returns what a function of tensors gives where the rows are, as NumPy arrays.

        Args:
          key: tells it from other functions; what it captures is part of that.
          function: makes TensorFlow's operations, returns tensors in any structure.
          *arrays: what it takes.
        """
        del key
        with tf.init_scope():
            result = function(*(tf.constant(array) for array in arrays))
        return None if result is None else tf.nest.map_structure(np.asarray, result)

    def expect(self, store: RowStore, name: str) -> None:
        """Sees to it that a slot variable has rows, before the optimizer makes it."""
        store.expect(
            name, lambda: GrowableArray((store.width,), tf.float32, 0.0, store.view.expected)
        )

    def drain(self) -> None:
        """Waits until all that this worker changed has arrived; here it has."""

    def meet(self) -> None:
        """Waits until no worker trains; here they all do what they do together."""
