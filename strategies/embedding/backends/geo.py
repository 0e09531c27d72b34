"""Tables whose rows are on the parameter servers, and are trained by the workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from strategies.collectives import Collectives
from strategies.embedding.backends.servers import ServerBackend
from strategies.embedding.lookup.geo import GeoRouter
from strategies.embedding.placement_report import placement_on_servers
from strategies.embedding.shard.local_rows import LocalRowVariable
from strategies.embedding.shard.server_shard import RemoteTableShard
from strategies.embedding.shard.table_shard import Group, TableSpecs
from strategies.embedding.tables import Tables


class GeoBackend(ServerBackend):
    """Shards tables over the parameter servers; workers train the rows that they use.

    See [Note: rows of the mode "geo"] in shard/local_rows.py.
    """

    # Most rows of the next step are those of the steps before it, which this worker has.
    may_prefetch = False

    def check(self, specs: TableSpecs) -> None:
        """Raises ValueError if workers cannot train the rows of one of the tables themselves."""
        super().check(specs)
        for configs in specs.groups.values():
            for config in configs:
                if config.evicts_in_steps:
                    raise ValueError(
                        "Rows that workers train themselves cannot be evicted during training, "
                        "because the servers learn only at an exchange which rows are in use. "
                        f"Received: overflow={config.overflow!r} and eviction={config.eviction!r} "
                        f"for the table {config.name!r} in mode='geo'. Pass geo_rows='servers' to "
                        "the strategy, or call layer.evict() with an Eviction that has no every."
                    )

    def create_tables(
        self, specs: TableSpecs, collectives: Collectives, optimizers: Mapping[str, Any]
    ) -> Tables:
        """Creates the tables; see `TableBackend`.

        Raises:
          ValueError: if workers cannot train the rows of one of the tables themselves.
        """
        del collectives, optimizers
        self.check(specs)
        extended = self._strategy.extended
        shards = self._create_shards(specs)
        variables = {
            group: LocalRowVariable(group.width, self._strategy, _slot_adder(shards, group))
            for group in specs.groups
        }
        routers = {
            group: GeoRouter(extended, shards, group, variable)
            for group, variable in variables.items()
        }
        placement = placement_on_servers(len(shards), are_trained_there=False)
        return self._create(specs, shards, variables, routers, placement)


def _slot_adder(
    shards: Sequence[RemoteTableShard], group: Group
) -> Callable[[str, np.ndarray], None]:
    def add(name: str, row: np.ndarray) -> None:
        for shard in shards:
            shard.add_slot(group, name, row)

    return add
