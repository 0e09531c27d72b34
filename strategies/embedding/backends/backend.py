"""Interface of the back ends that hold the rows of a layer's tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import tensorflow as tf

from strategies.collectives import Collectives
from strategies.embedding.backends.geo import GeoBackend
from strategies.embedding.backends.servers import ServerBackend
from strategies.embedding.backends.workers import WorkerBackend
from strategies.embedding.shard.table_shard import TableSpecs
from strategies.embedding.tables import Tables


class TableBackend(Protocol):
    """Creates the tables of a layer under one strategy.

    An implementation decides which tasks hold the shards of a table, how a lookup reaches them, and
    where gradients are applied to their rows. The code above it is the same for all of them.

    Attributes:
      may_prefetch: whether rows may be looked up before the step that needs them, although steps in
        between may change them.
      may_exchange_ahead: whether workers in step may exchange rows during the step before.
    """

    @property
    def may_prefetch(self) -> bool:
        """See the class."""

    @property
    def may_exchange_ahead(self) -> bool:
        """See the class."""

    def check(self, specs: TableSpecs) -> None:
        """Raises ValueError if it does not support one of the tables."""

    def create_tables(
        self, specs: TableSpecs, collectives: Collectives, optimizers: Mapping[str, Any]
    ) -> Tables:
        """Creates the tables.

        Args:
          specs: specification of the tables.
          collectives: collectives among the workers.
          optimizers: optimizers of the tables that have their own, by the table's name.
        """


def backend_of(strategy: tf.distribute.Strategy) -> TableBackend:
    """Returns the back end for tables that are created under a strategy."""
    if getattr(strategy.extended, "servers", None) is None:
        return WorkerBackend(strategy)
    trains_rows = strategy.extended.update_mode.row_steps is not None
    return GeoBackend(strategy) if trains_rows else ServerBackend(strategy)
