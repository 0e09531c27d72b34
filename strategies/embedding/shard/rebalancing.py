"""Redistribution of the capacity of tables over their shards, after rows were set or restored."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from strategies.collectives import Collectives
from strategies.collectives.single_worker import in_single_worker_scope
from strategies.embedding.shard.capacity import split_capacity
from strategies.embedding.shard.table import Table
from strategies.embedding.shard.table_shard import TableShard


def rebalance(shards: Sequence[TableShard], collectives: Collectives, together: bool) -> None:
    """Redistributes the capacity of tables by the number of ids in each shard.

    A shard may then have more ids than its part of the capacity; the parts of the others shrink
    accordingly.

    Args:
      shards: shards of the tables that this worker can access.
      collectives: collectives among the workers.
      together: whether all workers call it, each for the shards that it owns. Otherwise, this
        worker can access all shards, and redistributes the capacity by itself.

    Raises:
      ValueError: if there are more ids than a table's `input_dim`.
    """
    if together and collectives.size > 1 and in_single_worker_scope():
        return  # the other workers do not take part
    own = [shard for shard in shards if shard.is_local_owner or not together]
    for name, table in shards[0].tables.items():
        if table.capacity is None or table.config.input_dim is None:
            continue
        sizes = _sizes(own, name, collectives if together else None)
        total = table.config.input_dim
        if sum(sizes.values()) > total:
            raise ValueError(
                f"The table {name!r} cannot hold more than input_dim ids. Received: rows of "
                f"{sum(sizes.values())} ids for input_dim={total}. Raise input_dim, or omit some "
                "of the rows."
            )
        capacities = split_capacity(total, [sizes[index] for index in sorted(sizes)])
        for shard in own:
            if shard.tables[name].capacity is not None:
                shard.call_on_table(name, _set_capacity, np.int64(capacities[shard.index]))


def _sizes(
    shards: Sequence[TableShard], name: str, collectives: Collectives | None
) -> dict[int, int]:
    """Returns the number of ids in each shard; with `collectives`, in those of all workers."""
    local = [
        (shard.index, int(shard.call_on_table(name, Table.size, idempotent=True)))
        for shard in shards
    ]
    sizes = np.reshape(np.array(local, np.int64), [-1, 2])
    if collectives is not None:
        with tf.init_scope():
            sizes = collectives.all_gather(tf.constant(sizes)).numpy()
    return dict(sizes.tolist())


def _set_capacity(table: Table, count: tf.Tensor) -> None:
    if table.capacity is not None:
        table.capacity.set(count)
