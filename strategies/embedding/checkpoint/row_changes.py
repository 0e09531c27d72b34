"""The rows of a layer that were changed or removed since a mark, for deltas of saves and exports.

A row records the step that last trained on it, and each shard logs the ids whose rows it evicts.
Rows that are set or restored have no such record: if there were any since the mark, all rows count
as changed.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from strategies.collectives import Collectives
from strategies.embedding.checkpoint import snapshot
from strategies.embedding.checkpoint.array_specs import PRESENT
from strategies.embedding.checkpoint.npy_stream import NpyWriter
from strategies.embedding.shard.table_shard import TableShard

# Name of the array of the ids that have had a row at the mark and have none now, in the files of a
# served model. In saved rows it is that of array_specs.py.
REMOVED = "removed"

_Counts = Mapping[tuple[int, str], int]


class _Extent(enum.IntEnum):
    """What is written of a table; the larger value is sufficient wherever a smaller one is."""

    CHANGED_AND_REMOVED = 0
    CHANGED_AND_PRESENT = 1
    ALL = 2


@dataclass(frozen=True)
class Mark:
    """Moment between two steps, in the shards that this worker saves.

    Attributes:
      replacements: how often rows were changed other than by training; `DeltaBases` counts them.
      steps: number of training steps, by the shard's index and the table's name.
      removals: number of removed ids in the log, by the same.
    """

    replacements: int
    steps: _Counts
    removals: _Counts


def mark(shards: Sequence[TableShard], replacements: int) -> Mark:
    """Returns a mark of this moment; from now on, the shards log the ids that they remove."""
    pairs = [(shard, name) for shard in _local(shards) for name in shard.tables]
    return Mark(
        replacements,
        {(shard.index, name): int(snapshot.step_of(shard, name)) for shard, name in pairs},
        {
            (shard.index, name): int(
                shard.call_on_table(name, lambda table: table.removals.begin())
            )
            for shard, name in pairs
        },
    )


class RowChanges:
    """What has changed in the tables of a layer since a mark; all workers must create it together.

    Args:
      shards: shards of the tables.
      since: the mark; None writes all rows.
      replacements: the present value of `Mark.replacements`.
      collectives: collectives among the workers.
    """

    def __init__(
        self,
        shards: Sequence[TableShard],
        since: Mark | None,
        replacements: int,
        collectives: Collectives,
    ):
        self._shards = _local(shards)
        self._since = since
        self._removed: dict[tuple[int, str], np.ndarray] = {}
        # A worker that leaves passes its shards on to others, which have no marks in them.
        keys = {(shard.index, name) for shard in self._shards for name in shards[0].tables}
        is_usable = (
            since is not None and since.replacements == replacements and keys <= set(since.removals)
        )
        extents = [
            self._look_up_removed(name) if is_usable else _Extent.ALL for name in shards[0].tables
        ]
        # The lists of all workers together must say which ids have a row.
        gathered = collectives.all_gather(tf.constant([extents], tf.int32)).numpy()
        agreed = map(_Extent, gathered.max(axis=0).tolist())
        self._extents = dict(zip(shards[0].tables, agreed, strict=True))

    def _look_up_removed(self, name: str) -> _Extent:
        extent = _Extent.CHANGED_AND_REMOVED
        for shard in self._shards:
            key = shard.index, name
            count = np.int64(self._since.removals[key])  # type: ignore[union-attr]
            ids, is_complete = shard.call_on_table(
                name, lambda table, count: table.removals.since(count), count, idempotent=True
            )
            ids = np.unique(ids)
            # Each worker evicts the same rows of a table of which each has a copy.
            is_replicated = shard.tables[name].config.is_replicated
            self._removed[key] = ids[shard.owns(ids)] if is_replicated else ids
            if not is_complete:
                extent = _Extent.CHANGED_AND_PRESENT
        return extent

    def removed(self, name: str) -> np.ndarray | None:
        """Returns the ids that this worker's shards of a table have removed since the mark.

        None on all workers if one of them does not know all of its own.
        """
        if self._extents[name] is not _Extent.CHANGED_AND_REMOVED:
            return None
        removed = [self._removed[shard.index, name] for shard in self._shards]
        return np.concatenate([np.zeros([0], np.int64), *removed])

    def write(self, name: str, files: NpyWriter) -> None:
        """Writes what has changed in a table on this worker, and nothing if it saves no shard.

        The arrays are `ids` and their `rows`, and either the ids that were removed or, if they are
        fewer or not known, all ids that have a row.
        """
        extent = self._extents[name]
        for shard in self._shards:
            key = shard.index, name
            since = None if extent is _Extent.ALL else self._since.steps[key]  # type: ignore[union-attr]
            for chunk in snapshot.row_chunks([shard], name, since):
                read = chunk.arrays(only=("rows",))
                arrays = {"ids": read["ids"], "rows": read["rows"]}
                if extent is not _Extent.CHANGED_AND_REMOVED:
                    arrays[PRESENT] = read.get(PRESENT, read["ids"])
                files.append(arrays)
            if extent is _Extent.CHANGED_AND_REMOVED:
                files.append({REMOVED: self._removed[key]})


def _local(shards: Sequence[TableShard]) -> list[TableShard]:
    return [shard for shard in shards if shard.is_local_owner]
