"""Tables whose rows are on the parameter servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.collectives import Collectives
from strategies.embedding.lookup.router import LookupRouter
from strategies.embedding.lookup.server import ServerRouter
from strategies.embedding.placement_report import Placement, placement_on_servers
from strategies.embedding.shard.server_shard import RemoteTableShard
from strategies.embedding.shard.table_shard import Group, TableSpecs
from strategies.embedding.tables import Tables
from strategies.ps.embedding_rows import RemoteRowVariable
from strategies.reduction.row_wire import RowWire
from strategies.variables.row_variable import RowVariable, new_name


class ServerBackend:
    """Shards tables over the parameter servers, which look up ids and apply gradients.

    Args:
      strategy: strategy that the tables are created under.
    """

    def __init__(self, strategy: tf.distribute.Strategy):
        self._strategy = strategy

    @property
    def may_prefetch(self) -> bool:
        """Whether workers are not in step, so that rows may lack updates of others in any case."""
        return not self._strategy.extended.in_step

    # All workers' ids are looked up in one call, and each gets its rows in the response.
    may_exchange_ahead = False

    def check(self, specs: TableSpecs) -> None:
        """Raises ValueError if parameter servers do not support one of the tables."""
        for configs in specs.groups.values():
            for config in configs:
                own = None if config.optimizer is None else type(config.optimizer).__name__
                if own is not None or config.overflow == "share" or config.is_replicated:
                    raise ValueError(
                        "Tables on parameter servers cannot have an optimizer of their own, "
                        "overflow='share' or placement='replicated'. Received: "
                        f"optimizer={own}, overflow={config.overflow!r} and "
                        f"placement={config.placement!r} for the table {config.name!r}. Omit "
                        "them, or start the job without --ps."
                    )

    def create_tables(
        self, specs: TableSpecs, collectives: Collectives, optimizers: Mapping[str, Any]
    ) -> Tables:
        """Creates the tables; see `TableBackend`.

        Raises:
          ValueError: if parameter servers do not support one of the tables.
        """
        del collectives, optimizers
        self.check(specs)
        extended = self._strategy.extended
        shards = self._create_shards(specs)
        # Workers in step have rounded the gradients that they add up.
        are_in_step = extended.in_step and extended.workers.size > 1
        variables: Mapping[Group, RowVariable] = {
            group: RemoteRowVariable(
                [shard.variables[group] for shard in shards],
                np.zeros(group.width, np.float32),
                True,
                new_name(),
                self._strategy,
                _slot_maker(shards, group),
                None if are_in_step else RowWire(group.width, group.exchange_dtype),
            )
            for group in specs.groups
        }
        routers = {group: ServerRouter(extended, shards, group) for group in specs.groups}
        return self._create(specs, shards, variables, routers, placement_on_servers(len(shards)))

    def _create_shards(self, specs: TableSpecs) -> list[RemoteTableShard]:
        """Creates the shard of each server."""
        extended = self._strategy.extended
        name = extended.registry.new_name("embedding")
        return [
            RemoteTableShard(extended, server, specs, name) for server in extended.servers.servers
        ]

    def _create(
        self,
        specs: TableSpecs,
        shards: Sequence[RemoteTableShard],
        variables: Mapping[Group, RowVariable],
        routers: Mapping[Group, LookupRouter],
        placement: Placement,
    ) -> Tables:
        """Creates the tables from their shards, variables and routers."""
        extended = self._strategy.extended
        for group, variable in variables.items():
            for shard in shards:
                shard.share_optimizers(group, variable)
        placements = dict.fromkeys(specs.groups, placement)
        tables = Tables(specs, extended.workers, shards, placements, variables, routers, {})
        for server in extended.servers.servers:
            if server.restarts is not None:
                server.restarts.add_listener(tables, lambda tables, _: tables.forget_lost_rows())
        return tables


def _slot_maker(shards: Sequence[RemoteTableShard], group: Group) -> Callable[..., Any]:
    return lambda name, row: [shard.new_slot(group, name, row) for shard in shards]
