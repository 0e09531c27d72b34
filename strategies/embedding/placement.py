"""Placement of a layer's tables in the memory of workers or on parameter servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.collectives import Collectives
from strategies.embedding.lookup.all_to_all import AllToAll
from strategies.embedding.lookup.fused_optimizer import FusedOptimizer
from strategies.embedding.lookup.replicated import ReplicatedRouter
from strategies.embedding.lookup.router import LookupRouter
from strategies.embedding.lookup.server import ServerRouter
from strategies.embedding.lookup.sharded import ShardedRouter
from strategies.embedding.placement_report import (
    replicated_on_workers,
    sharded_over_servers,
    sharded_over_workers,
)
from strategies.embedding.shard.server_shard import RemoteTableShard
from strategies.embedding.shard.table_shard import Group, TableShard, TableSpecs
from strategies.embedding.tables import Tables
from strategies.ps.embedding_rows import RemoteRowVariable
from strategies.variables.row_variable import RowVariable, new_name
from strategies.variables.row_view import RowView


def place_on_workers(
    specs: TableSpecs,
    collectives: Collectives,
    strategy: tf.distribute.Strategy | None,
    optimizers: Mapping[str, Any],
) -> Tables:
    """Creates tables whose rows are in the workers' memory.

    Args:
      specs: specification of the tables.
      collectives: collectives among the workers.
      strategy: strategy that the tables are created under; None without a strategy.
      optimizers: optimizers of the tables that have their own, by the table's name.
    """
    variables = {
        group: RowVariable(
            RowView(specs.expected_rows(group, collectives.size)),
            np.zeros(group.width, np.float32),
            True,
            new_name(),
            strategy,
        )
        for group in specs.groups
    }
    fused_optimizers = {
        group: FusedOptimizer(optimizers[group.table], variables[group])
        for group in specs.groups
        if group.table is not None
    }
    shard = TableShard(collectives.rank, collectives.size, specs, variables)
    all_to_all = AllToAll(collectives)
    routers: dict[Group, LookupRouter] = {}
    placements = {}
    for group, shard_lookup in shard.lookups.items():
        if group.is_replicated and collectives.size > 1:
            routers[group] = ReplicatedRouter(collectives, shard_lookup)
            placements[group] = replicated_on_workers(collectives.size)
        else:
            routers[group] = ShardedRouter(all_to_all, shard_lookup)
            placements[group] = sharded_over_workers(collectives.size)
    return Tables(specs, collectives, [shard], placements, variables, routers, fused_optimizers)


def place_on_servers(specs: TableSpecs, strategy: tf.distribute.Strategy) -> Tables:
    """Creates tables whose rows are on the parameter servers of a strategy.

    Args:
      specs: specification of the tables.
      strategy: strategy that the tables are created under.

    Raises:
      ValueError: if parameter servers do not support one of the tables.
    """
    check_on_servers(specs)
    extended = strategy.extended
    name = extended.registry.new_name("embedding")
    shards = [
        RemoteTableShard(extended, server, specs, name) for server in extended.servers.servers
    ]
    variables: Mapping[Group, RowVariable] = {
        group: RemoteRowVariable(
            [shard.variables[group] for shard in shards],
            np.zeros(group.width, np.float32),
            True,
            new_name(),
            strategy,
            _slot_maker(shards, group),
        )
        for group in specs.groups
    }
    for group, variable in variables.items():
        for shard in shards:
            shard.share_optimizers(group, variable)
    routers = {group: ServerRouter(extended, shards, group) for group in specs.groups}
    placements = dict.fromkeys(specs.groups, sharded_over_servers(len(shards)))
    return Tables(specs, extended.workers, shards, placements, variables, routers, {})


def _slot_maker(shards: Sequence[RemoteTableShard], group: Group) -> Callable[..., Any]:
    return lambda name, row: [shard.new_slot(group, name, row) for shard in shards]


def check_on_servers(specs: TableSpecs) -> None:
    """Raises ValueError if parameter servers do not support one of the tables."""
    for configs in specs.groups.values():
        for config in configs:
            plain = config.optimizer is None and config.overflow == "error"
            if not plain or config.is_replicated:
                raise ValueError(
                    "Tables on parameter servers cannot have an optimizer of their own, "
                    "overflow='share' or placement='replicated'. Received: "
                    f"optimizer={config.optimizer!r}, overflow={config.overflow!r} and "
                    f"placement={config.placement!r} for the table {config.name!r}. Omit them, or "
                    "start the job without --ps."
                )
