"""Tables for serving, which a SavedModel stores as TensorFlow's own hash tables.

A SavedModel can therefore be served without this package. A function that is traced while a
SavedModel is written looks up ids in these tables instead of the layer's tables, which exist only
in the training job. The tables are empty in the process that saves: their contents are fetched from
all workers during the save and not kept afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.collectives import Collectives
from strategies.embedding.checkpoint.snapshot import gather_all, ids_and_rows
from strategies.embedding.shard.hashing import shard_of
from strategies.embedding.shard.table import Table
from strategies.embedding.shard.table_shard import TableShard
from strategies.utils.devices import HOST


class ServedTable(tf.lookup.experimental.MutableHashTable):
    """Hash table from int64 keys to rows, in a SavedModel.

    Args:
      width: width of a row.
      fetch: function that returns all keys and their rows; all workers must call it.
    """

    def __init__(self, width: int, fetch: Callable[[], tuple[np.ndarray, np.ndarray]]):
        self._fetch = fetch
        self._is_served = False
        with tf.init_scope(), tf.device(HOST):
            super().__init__(tf.int64, tf.float32, tf.zeros([width]))

    def find(self, keys: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
        """Returns the rows of keys, [n, width], and those of `others` for absent keys."""
        with tf.device(HOST):
            return tf.ensure_shape(self.lookup(keys, dynamic_default_values=others), others.shape)

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        """Returns the tensors to write: none in a checkpoint, which has the layer's own tables.

        For a SavedModel, TensorFlow first traces this method and then calls it.
        """
        if not tf.executing_eagerly():
            self._is_served = True
            return super()._serialize_to_tensors()
        if not self._is_served:
            return {}
        self._is_served = False
        keys, rows = self._fetch()
        return {"-keys": tf.constant(keys), "-values": tf.constant(rows)}


class Serving:
    """The tables of a layer in a SavedModel.

    Args:
      shards: shards of the tables.
      collectives: collectives among the workers.
      unseen: "initial" or "zeros", the values of an id without a row.
    """

    def __init__(self, shards: Sequence[TableShard], collectives: Collectives, unseen: str):
        self._shards = shards
        self._tables = tables = shards[0].tables
        self._collectives = collectives
        self._unseen = unseen
        self._rows = {}
        # Shared rows by the rank of the owner, for workers without capacity left.
        self._shared = {}
        for name, table in tables.items():
            width = table.config.output_dim
            self._rows[name] = ServedTable(width, partial(self._all_rows, name))
            if table.overflow is not None:
                self._shared[name] = ServedTable(width, partial(self._all_shared, table))

    @property
    def parts(self) -> dict[str, Any]:
        """The tables by their names in a SavedModel."""
        return {
            **{f"rows_{name}": table for name, table in self._rows.items()},
            **{f"shared_{name}": table for name, table in self._shared.items()},
        }

    def rows(self, name: str, ids: tf.Tensor) -> tf.Tensor:
        """Returns the rows of a table's ids, float32 [n, width]."""
        table = self._tables[name]
        if self._unseen == "initial":
            others = tf.ensure_shape(table.initial(ids), [None, table.config.output_dim])
        else:
            others = tf.zeros([tf.size(ids), table.config.output_dim])
        if name in self._shared:
            others = self._shared[name].find(shard_of(ids, self._collectives.size), others)
        return self._rows[name].find(ids, others)

    def _all_rows(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        self._shards[0].barrier()
        ids, rows = ids_and_rows(self._shards, name)
        gathered = gather_all({"ids": ids, "rows": rows}, self._collectives)
        return gathered["ids"], gathered["rows"]

    def _all_shared(self, table: Table) -> tuple[np.ndarray, np.ndarray]:
        row = table.shared_row()
        collectives = self._collectives
        arrays = {
            "ids": tf.repeat(tf.constant([collectives.rank], tf.int64), tf.size(row)),
            "rows": table.store.variable.table.gather(row),
        }
        gathered = gather_all(arrays, collectives)
        return gathered["ids"], gathered["rows"]
