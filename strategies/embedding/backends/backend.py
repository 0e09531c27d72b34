"""Interface of what holds the rows of a layer's tables, and its choice by the strategy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import tensorflow as tf

from strategies.collectives import Collectives
from strategies.embedding.backends.servers import ServerBackend
from strategies.embedding.backends.workers import WorkerBackend
from strategies.embedding.shard.table_shard import TableSpecs
from strategies.embedding.tables import Tables


class TableBackend(Protocol):
    """Creates the tables of a layer under one strategy.

    An implementation decides which tasks have the shards of a table, how a lookup reaches them, and
    who applies gradients to their rows. Everything above it is the same for all.

    Attributes:
      may_prefetch: whether rows may be looked up before the step that needs them, although other
        steps change them meanwhile.
    """

    @property
    def may_prefetch(self) -> bool:
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
    """Returns what holds the rows of tables that are created under a strategy."""
    has_servers = getattr(strategy.extended, "servers", None) is not None
    return ServerBackend(strategy) if has_servers else WorkerBackend(strategy)
