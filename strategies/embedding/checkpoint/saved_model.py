"""Tables for serving, which a SavedModel stores as TensorFlow's own hash tables.

A SavedModel can therefore be served without this package. A function that is traced while a
SavedModel is written looks up ids in these tables instead of the layer's tables, which exist only
in the training job. The tables are empty in the process that saves: their contents are fetched from
all workers during the save and not kept afterwards.

What a table contains can be updated where the SavedModel is served; see [Note: live updates] in
live/publisher.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.collectives import Collectives
from strategies.embedding.checkpoint.array_specs import PRESENT
from strategies.embedding.checkpoint.npy_stream import NpyWriter
from strategies.embedding.checkpoint.row_changes import RowChanges
from strategies.embedding.checkpoint.snapshot import Arrays, gather_all, ids_and_rows
from strategies.embedding.shard.hashing import shard_of
from strategies.embedding.shard.table import Table
from strategies.embedding.shard.table_shard import TableShard
from strategies.utils.devices import HOST


class ServedTable(tf.lookup.experimental.MutableHashTable):
    """Hash table from int64 keys to rows, in a SavedModel.

    Args:
      width: width of a row.
      fetch: function that returns all keys and their rows; all workers must call it.

    Attributes:
      width: width of a row.
    """

    def __init__(self, width: int, fetch: Callable[[], tuple[np.ndarray, np.ndarray]]):
        self._fetch = fetch
        self._is_served = False
        self.width = width
        with tf.init_scope(), tf.device(HOST):
            super().__init__(tf.int64, tf.float32, tf.zeros([width]))

    def find(self, keys: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
        """Returns the rows of keys, [n, width], and those of `others` for absent keys."""
        with tf.device(HOST):
            return tf.ensure_shape(self.lookup(keys, dynamic_default_values=others), others.shape)

    def update(
        self,
        ids: tf.Tensor,
        rows: tf.Tensor,
        removed: tf.Tensor,
        present: tf.Tensor,
        retains: tf.Tensor,
    ) -> None:
        """Sets the rows of distinct ids, and removes others.

        Args:
          ids: ids, int64 [n].
          rows: their rows, float32 [n, width].
          removed: ids to remove.
          present: the ids that the table has afterwards, if `retains` is true.
          retains: whether all ids are removed that are not in `present`, instead of `removed`.
        """

        def others() -> tf.Tensor:
            return tf.raw_ops.ListDiff(x=self.export()[0], y=present).out

        with tf.device(HOST):
            self.insert(ids, rows)
            self.remove(tf.cond(retains, others, lambda: removed))

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

    @property
    def widths(self) -> dict[str, int]:
        """The widths of `parts`, by names that differ where the parts mean something else."""
        size = self._collectives.size
        return {
            # The owner of an id depends on the number of owners.
            f"{name}_of_{size}" if name.startswith("shared_") else name: part.width
            for name, part in self.parts.items()
        }

    def write_changes(self, part: str, changes: RowChanges, files: NpyWriter) -> None:
        """Writes what has changed in one of `parts` on this worker; see `RowChanges.write`."""
        kind, _, name = part.partition("_")
        if kind == "rows":
            changes.write(name, files)
        else:
            # One row for each owner without capacity left: all of them are written.
            arrays = self._own_shared(self._tables[name])
            files.append({**arrays, PRESENT: arrays["ids"]})

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
        gathered = gather_all(self._own_shared(table), self._collectives)
        return gathered["ids"], gathered["rows"]

    def _own_shared(self, table: Table) -> Arrays:
        """Returns this worker's shared row of a table, if it is in use, with the worker's rank."""
        row = table.shared_row()
        ranks = tf.repeat(tf.constant([self._collectives.rank], tf.int64), tf.size(row))
        return {"ids": ranks.numpy(), "rows": table.store.variable.table.gather(row).numpy()}
