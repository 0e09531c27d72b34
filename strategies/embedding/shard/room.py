"""How many rows tables have room for in each worker, once rows were set."""

from __future__ import annotations

import tensorflow as tf

from strategies.collectives import Collectives
from strategies.collectives.single_worker import in_single_worker_scope
from strategies.embedding.shard.overflow import parts_of
from strategies.embedding.shard.shard import TableShard


def share_out(home: TableShard, collectives: Collectives) -> None:
    """Gives each worker its part of the room of tables whose ids share a row when there is none.

    Rows that were trained by other workers may have come to one that has more of them than it
    would have taken; what it has more, the others have less. All workers call it.

    Raises:
      ValueError: if there are more rows than a table may have.
    """
    if collectives.size > 1 and in_single_worker_scope():
        return  # it looks up, and the others do not know of it
    for name, table in home.tables.items():
        if table.overflow is None or table.config.input_dim is None:
            continue
        with tf.init_scope():
            held = collectives.all_gather(table.map.size()[tf.newaxis]).numpy().tolist()
        if sum(held) > table.config.input_dim:
            raise ValueError(
                f"The table {name!r} has at most input_dim ids. Received: rows of {sum(held)} ids "
                f"for input_dim={table.config.input_dim}. Raise it, or leave some of them out."
            )
        table.overflow.set_most(parts_of(table.config.input_dim, held)[collectives.rank])
