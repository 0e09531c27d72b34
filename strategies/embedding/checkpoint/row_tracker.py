"""Which rows have changed while all rows were read.

[Note: time of a cut]
Training waits while the changes are determined, so this takes neither the list of all ids nor a
lookup of each: the reading of all rows finds out which id has which row, the shard logs which ids
get and lose rows meanwhile, and of all rows only the step that last trained on them is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from strategies.embedding.checkpoint.snapshot import RowChunk
from strategies.embedding.shard.shard_lookup import ShardLookup
from strategies.embedding.shard.table_shard import TableShard


@dataclass(frozen=True)
class Changes:
    """The rows of a shard of a table that were trained on, and the ids whose rows were removed.

    Attributes:
      shard: the shard.
      ids: the ids of the rows.
      numbers: the numbers of the rows.
      removed: the ids without a row that had one at some time since.
      is_complete: whether these are all.
    """

    shard: TableShard
    ids: np.ndarray
    numbers: np.ndarray
    removed: np.ndarray
    is_complete: bool


class RowTracker:
    """Follows the rows of this worker's shards from a moment between two steps.

    Args:
      shards: the shards.
    """

    def __init__(self, shards: Sequence[TableShard]):
        self._groups = [
            _TrackedGroup(shard, lookup) for shard in shards for lookup in shard.lookups.values()
        ]
        self._of_table = {
            (group.shard.index, name): group for group in self._groups for name in group.names
        }

    def note(self, chunk: RowChunk) -> None:
        """Notes which ids had the rows of a chunk when it was read."""
        self._of_table[chunk.shard.index, chunk.name].note(chunk)

    def take(self) -> dict[str, list[Changes]]:
        """Returns the changes of each table, by shard; called once, between two steps."""
        changes: dict[str, list[Changes]] = {}
        for group in self._groups:
            for name, each in group.take().items():
                changes.setdefault(name, []).append(each)
        return changes


class _TrackedGroup:
    """The tables of a shard whose rows share a store."""

    def __init__(self, shard: TableShard, lookup: ShardLookup):
        self.shard = shard
        self.names = [table.config.name for table in lookup.tables]
        self._lookup = lookup
        length, self._since, self._reader, self._removals = shard.call(lookup.begin_changes)
        # The id of each row and the number of its table, -1 if it has none.
        self._ids = np.zeros([length], np.int64)
        self._tables = np.full([length], -1, np.int32)

    def note(self, chunk: RowChunk) -> None:
        self._ids[chunk.numbers] = chunk.ids
        self._tables[chunk.numbers] = self.names.index(chunk.name)

    def take(self) -> dict[str, Changes]:
        rows, entries, is_complete, removed = self.shard.call(
            self._lookup.end_changes, self._since, self._reader, self._removals, idempotent=True
        )
        is_complete = bool(is_complete)
        if not is_complete:
            rows = rows[:0]  # some have had other ids meanwhile, or none that is known
        self._grow(1 + max(rows.max(initial=-1), entries[:, 0].max(initial=-1)))
        # Of several ids that have had a row, the last one counts.
        self._ids[entries[:, 0]], self._tables[entries[:, 0]] = entries[:, 2], entries[:, 1]
        tables = self._tables[rows]
        changes = {}
        for number, (name, (gone, has_all)) in enumerate(zip(self.names, removed, strict=True)):
            changed = rows[tables == number]
            ids, gone = self._ids[changed], np.unique(gone)
            if self.shard.tables[name].config.is_replicated:
                owned = self.shard.owns(ids)
                ids, changed, gone = ids[owned], changed[owned], gone[self.shard.owns(gone)]
            is_all = is_complete and bool(has_all)
            changes[name] = Changes(self.shard, ids, changed, gone, is_all)
        return changes

    def _grow(self, length: int) -> None:
        more = length - len(self._ids)
        if more > 0:
            self._ids = np.pad(self._ids, (0, more))
            self._tables = np.pad(self._tables, (0, more), constant_values=-1)
