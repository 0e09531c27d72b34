"""Tables for serving: in a SavedModel they are TensorFlow's own, and need no code of this package.

A function that is traced while a SavedModel is written looks up in these in place of the layer's
tables, which no other process has. They are empty in the process that saves: what is written is
fetched from all workers when it is written, and is kept by none.
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
from strategies.embedding.shard.shard import TableShard
from strategies.embedding.shard.table import Table
from strategies.variables.growable_array import HOST


class ServedTable(tf.lookup.experimental.MutableHashTable):
    """A hash table of rows by their keys, int64, in a SavedModel.

    Args:
      width: width of a row.
      fetch: returns all keys and their rows; all workers call it.
    """

    def __init__(self, width: int, fetch: Callable[[], tuple[np.ndarray, np.ndarray]]):
        self._fetch = fetch
        self._is_served = False
        with tf.init_scope(), tf.device(HOST):
            super().__init__(tf.int64, tf.float32, tf.zeros([width]))

    def find(self, keys: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
        """Returns the rows of keys, [n, width]; of absent keys those of `others`."""
        with tf.device(HOST):
            return tf.ensure_shape(self.lookup(keys, dynamic_default_values=others), others.shape)

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        """Returns the tensors to write: none in a checkpoint, which has the layer's own tables.

        Of a SavedModel TensorFlow traces this first, and then calls it.
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
      collectives: the workers.
      unseen: "initial" or "zeros", the values of an id that has no row.
    """

    def __init__(self, shards: Sequence[TableShard], collectives: Collectives, unseen: str):
        self._shards = shards
        self._tables = tables = shards[0].tables
        self._collectives = collectives
        self._unseen = unseen
        self._rows = {}
        # By the rank of the worker that owns an id, of workers without capacity left.
        self._shared = {}
        for name, table in tables.items():
            width = table.config.output_dim
            self._rows[name] = ServedTable(width, partial(self._all_rows, name))
            if table.overflow is not None:
                self._shared[name] = ServedTable(width, partial(self._all_shared, table))

    @property
    def parts(self) -> dict[str, Any]:
        """The tables by the names that they have in a SavedModel."""
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
