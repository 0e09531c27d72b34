"""Where a layer's tables are made: in the workers' memory, or on parameter servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.collectives import Collectives
from strategies.embedding.lookup.all_to_all import AllToAll
from strategies.embedding.lookup.fused_optimizer import FusedOptimizer
from strategies.embedding.lookup.remote import RemoteTableShard, ServerRouter
from strategies.embedding.lookup.router import LookupRouter, ReplicatedRouter, ShardedRouter
from strategies.embedding.placement_report import (
    place_in_all_workers,
    place_in_workers,
    place_on_servers,
)
from strategies.embedding.shard.shard import Group, TableShard, TableSpecs
from strategies.embedding.tables import Tables
from strategies.ps.sparse import RemoteRowVariable
from strategies.variables.sparse_variable import ActiveRows, SparseVariable, new_name


def in_workers(
    wanted: TableSpecs,
    collectives: Collectives,
    strategy: tf.distribute.Strategy | None,
    optimizers: Mapping[str, Any],
) -> Tables:
    """Returns tables whose rows are in the workers' memory.

    Args:
      wanted: what they are made from.
      collectives: the workers.
      strategy: the one that they are made under, None for none.
      optimizers: of tables that have one of their own, by name.
    """
    variables = {
        group: SparseVariable(
            ActiveRows(wanted.expected(group, collectives.size)),
            np.zeros(group.width, np.float32),
            True,
            new_name(),
            strategy,
        )
        for group in wanted.groups
    }
    trainers = {
        group: FusedOptimizer(optimizers[group.table], variables[group])
        for group in wanted.groups
        if group.table is not None
    }
    home = TableShard(collectives.rank, collectives.size, wanted, variables)
    exchange = AllToAll(collectives)
    routes: dict[Group, LookupRouter] = {}
    places = {}
    for group, finder in home.finders.items():
        if group.is_replicated and collectives.size > 1:
            routes[group] = ReplicatedRouter(collectives, finder)
            places[group] = place_in_all_workers(collectives.size)
        else:
            routes[group] = ShardedRouter(exchange, finder)
            places[group] = place_in_workers(collectives.size)
    return Tables(wanted, collectives, [home], places, variables, routes, trainers)


def on_servers(wanted: TableSpecs, strategy: tf.distribute.Strategy) -> Tables:
    """Returns tables whose rows are on the parameter servers of a strategy.

    Args:
      wanted: what they are made from.
      strategy: the one that they are made under.

    Raises:
      ValueError: if they are of a kind that servers do not have.
    """
    check_on_servers(wanted)
    extended = strategy.extended
    name = extended.registry.new_name("embedding")
    homes = [
        RemoteTableShard(extended, server, wanted, name) for server in extended.servers.servers
    ]
    variables: Mapping[Group, SparseVariable] = {
        group: RemoteRowVariable(
            [home.variables[group] for home in homes],
            np.zeros(group.width, np.float32),
            True,
            new_name(),
            strategy,
            _slot_maker(homes, group),
        )
        for group in wanted.groups
    }
    routes = {group: ServerRouter(extended, homes, group) for group in wanted.groups}
    places = dict.fromkeys(wanted.groups, place_on_servers(len(homes)))
    return Tables(wanted, extended.workers, homes, places, variables, routes, {})


def _slot_maker(homes: Sequence[RemoteTableShard], group: Group) -> Callable:
    return lambda name, row: [home.new_slot(group, name, row) for home in homes]


def check_on_servers(wanted: TableSpecs) -> None:
    """Checks that tables are of a kind that servers have.

    Raises:
      ValueError: if one is not.
    """
    for configs in wanted.groups.values():
        for config in configs:
            plain = config.optimizer is None and config.overflow == "error"
            if not plain or config.is_replicated:
                raise ValueError(
                    "On parameter servers the model's optimizer trains all tables, each row is on "
                    f"one server, and no ids share one. Received: optimizer={config.optimizer!r}, "
                    f"overflow={config.overflow!r} and placement={config.placement!r} for the "
                    f"table {config.name!r}. Leave them out, or start the job without --ps."
                )
