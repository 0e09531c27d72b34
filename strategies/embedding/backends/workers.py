"""Tables whose rows are in the memory of the workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.collectives import Collectives
from strategies.collectives.shared_memory import SharedMemoryCollectives
from strategies.collectives.workers import collectives_of
from strategies.embedding.lookup.all_to_all import AllToAll
from strategies.embedding.lookup.fused_optimizer import FusedOptimizer
from strategies.embedding.lookup.replicated import ReplicatedRouter
from strategies.embedding.lookup.router import LookupRouter
from strategies.embedding.lookup.sharded import ShardedRouter
from strategies.embedding.placement_report import placement_of_copies, placement_on_workers
from strategies.embedding.shard.table_shard import Group, TableShard, TableSpecs
from strategies.embedding.tables import Tables
from strategies.reduction.row_wire import RowWire
from strategies.variables.row_variable import RowVariable, new_name
from strategies.variables.row_view import RowView


class WorkerBackend:
    """Shards tables over the workers, which exchange ids, rows and gradients within each step.

    Args:
      strategy: strategy that the tables are created under.
    """

    # Rows change in each step of any worker, and workers run in step.
    may_prefetch = False

    def __init__(self, strategy: tf.distribute.Strategy):
        self._strategy = strategy

    @property
    def may_exchange_ahead(self) -> bool:
        """Whether rows are exchanged over a network; see [Note: rows ahead of time]."""
        collectives = collectives_of(self._strategy)
        return collectives.size > 1 and not isinstance(collectives, SharedMemoryCollectives)

    def check(self, specs: TableSpecs) -> None:
        """Does nothing: workers support all tables."""

    def create_tables(
        self, specs: TableSpecs, collectives: Collectives, optimizers: Mapping[str, Any]
    ) -> Tables:
        """Creates the tables; see `TableBackend`."""
        # None if this is called outside of all scopes, even if the layer was created in one.
        strategy = self._strategy if tf.distribute.has_strategy() else None
        variables = {
            group: RowVariable(
                RowView(specs.expected_rows(group, collectives.size), specs.evicts_in_steps(group)),
                np.zeros(group.width, np.float32),
                True,
                new_name(),
                strategy,
                dtypes=group.dtypes,
            )
            for group in specs.groups
        }
        fused_optimizers = {
            group: FusedOptimizer(optimizers[group.table], variables[group])
            for group in specs.groups
            if group.table is not None
        }
        shard = TableShard(collectives.rank, collectives.size, specs, variables)
        routers: dict[Group, LookupRouter] = {}
        placements = {}
        for group, shard_lookup in shard.lookups.items():
            if group.is_replicated and collectives.size > 1:
                routers[group] = ReplicatedRouter(collectives, shard_lookup)
                placements[group] = placement_of_copies(collectives.size)
            else:
                all_to_all = AllToAll(collectives, RowWire(group.width, group.exchange_dtype))
                routers[group] = ShardedRouter(all_to_all, shard_lookup)
                placements[group] = placement_on_workers(collectives.size)
        return Tables(specs, collectives, [shard], placements, variables, routers, fused_optimizers)
