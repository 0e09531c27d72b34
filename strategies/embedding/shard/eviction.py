"""Eviction of expired rows from all shards.

`config.Eviction` defines the rule; `DistributedEmbedding.evict` calls `evict`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import tensorflow as tf

from strategies.collectives import Collectives
from strategies.embedding.config import Eviction
from strategies.embedding.shard.row_store import RowStore
from strategies.embedding.shard.table import Table
from strategies.embedding.shard.table_shard import TableShard


def evict(shards: Sequence[TableShard], collectives: Collectives) -> dict[str, int]:
    """Evicts the expired rows of all tables; returns their number over all workers, by table.

    All workers must call it, and none may train during the call.

    Args:
      shards: shards of the tables; each owner evicts from its own.
      collectives: collectives among the workers.
    """
    tables = shards[0].tables
    evicted = np.zeros([len(tables)], np.int64)
    for shard in shards:
        if not shard.is_local_owner:
            continue
        for position, table in enumerate(shard.tables.values()):
            evict_from_table = partial(evict_rows, table)
            evicted[position] += shard.call(evict_from_table, state=table.store.slots())
    total = collectives.all_reduce([tf.constant(evicted)])[0].numpy().tolist()
    return dict(zip(tables, total, strict=True))


def evict_rows(table: Table) -> tf.Tensor:
    """Removes the expired rows of one shard of a table; returns their number, int64."""
    rule = table.config.eviction
    if rule is None:
        return tf.constant(0, tf.int64)
    ids, rows = table.map.all()
    mask = is_expired(rule, table.store, rows)
    table.remove(tf.boolean_mask(ids, mask), tf.boolean_mask(rows, mask))
    evicted = tf.math.count_nonzero(mask)
    table.add_counts(evicted=evicted)
    return evicted


def is_expired(rule: Eviction, store: RowStore, rows: tf.Tensor) -> tf.Tensor:
    """Returns a mask of the rows that a rule evicts.

    Args:
      rule: the rule.
      store: store of the rows.
      rows: numbers of the rows, int64 [n].
    """
    ages = store.step.read_value() - store.metadata.last_step.gather(rows)
    mask = tf.zeros_like(rows, tf.bool)
    if rule.age is not None:
        mask |= ages >= rule.age
    if rule.count is not None:
        mask |= store.metadata.frequency.gather(rows) < rule.count
    return mask
