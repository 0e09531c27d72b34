"""Saving of all rows while training goes on.

[Note: rows saved beside training]
A first pass writes all rows, chunk by chunk, in a thread. Steps change rows meanwhile, so the files
of this pass have some rows as they were early and others as they were late, and a row that was read
while it was written may be a mixture. Then, between two steps, `cut` takes the ids that have lost
their rows and the rows that were trained on since the pass began. Restoring reads the files of the
first pass, removes these ids, and sets the rows of the second pass. What then remains of the first
pass was not trained on while it was read, so the result is exactly the rows at the cut:

* A row that was trained on has a step after that of the pass, and is in the second pass.
* An id that was evicted is among the removed ids. An id that took over the place of its row was
  inserted by a step, and is in the second pass.
* A row that was set or restored has no such step. `DeltaBases` counts these changes; if there was
  one, the second pass has all rows, and the first is not used.

If more ids were removed than are left, or two saves went on at the same time, the second pass lists
all ids that have a row instead of those that were removed.

Training waits for `cut` alone, whose time grows with the rows that were trained on; see [Note: time
of a cut] in row_tracker.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import tensorflow as tf

from strategies.collectives import Collectives
from strategies.embedding.checkpoint import snapshot
from strategies.embedding.checkpoint.array_specs import REMOVED
from strategies.embedding.checkpoint.npy_stream import NpyWriter
from strategies.embedding.checkpoint.part_files import part_files
from strategies.embedding.checkpoint.row_checkpoint import DeltaBases, make_folders, write_latest
from strategies.embedding.checkpoint.row_tracker import Changes, RowTracker
from strategies.embedding.checkpoint.server_files import ServerFiles
from strategies.embedding.checkpoint.snapshot import Arrays, RowChunk
from strategies.embedding.shard.table_shard import TableShard
from strategies.files.atomic_files import all_writing, flush_to_disk, remove


class BackgroundSave:
    """Saves the rows of all workers to a directory in which none are saved.

    All workers create it between the same two steps, and call `cut` between the same two later
    steps, and `publish` when all have written. See [Note: rows saved beside training].

    Args:
      shards: shards of the tables.
      directory: a directory that all workers can access.
      collectives: collectives among the workers.
      bases: counts the changes of rows other than by training.

    Raises:
      ValueError: if the names of the slot variables differ between workers.
      OSError: if the first worker cannot create the folders.
      RuntimeError: on the other workers in that case.
    """

    def __init__(
        self,
        shards: Sequence[TableShard],
        directory: str,
        collectives: Collectives,
        bases: DeltaBases,
    ):
        snapshot.check_same_slots(shards, collectives)
        self._shards = shards
        self._local = [shard for shard in shards if shard.is_local_owner]
        self._path = Path(directory)
        self._collectives = collectives
        self._bases = bases
        self._changes = bases.changes
        self._tables = shards[0].tables
        self._since = self._steps = self._current_steps()
        self._lengths = {name: snapshot.grow_columns(self._local, name) for name in self._tables}
        self._tracker = RowTracker(self._local)
        self._first, self._second = (self._path / f"{number:06d}" for number in (1, 2))
        self._uses_first = True
        self._rest: list[tuple[NpyWriter, list[Arrays]]] = []
        self._writing = ExitStack()
        make_folders([self._first, self._second], directory, collectives)

    def _current_steps(self) -> dict[str, int]:
        return {name: int(snapshot.step_of(self._shards[0], name)) for name in self._tables}

    def write_first(self, check: Callable[[], None]) -> None:
        """Writes all rows of this worker, which training may change meanwhile.

        Args:
          check: called after each chunk; ends the pass by an error.

        Raises:
          OSError: if a file cannot be written.
        """
        with part_files(self._first, self._collectives.rank) as part:
            servers = ServerFiles(part, self._local)
            for position, name in enumerate(self._tables):
                with part.of_table(position) as files:
                    for chunk in snapshot.row_chunks(
                        self._local,
                        name,
                        lengths=self._lengths[name],
                        chunk_bytes=servers.chunk_bytes,
                    ):
                        self._tracker.note(chunk)
                        servers.append(files, position, chunk)
                        check()
                    if self._local:
                        files.append(snapshot.initial_arrays(self._tables[name]))

    def cut(self, memory: int) -> None:
        """Takes what has changed since the first pass began; all workers must call it.

        Args:
          memory: number of bytes of rows to keep for `write_rest`. What is beyond is written at
            once.

        Raises:
          ValueError: if the names of the slot variables differ between workers.
          OSError: if a file cannot be written; a `RuntimeError` on the other workers.
        """
        snapshot.check_same_slots(self._shards, self._collectives)
        changes = self._tracker.take()
        own = [self._bases.changes == self._changes]
        own += [all(each.is_complete for each in changes.get(name, ())) for name in self._tables]
        of_all = self._collectives.all_gather(tf.constant([own], tf.int32)).numpy()
        self._uses_first, *are_complete = of_all.all(axis=0).tolist()
        self._steps = self._current_steps()
        with all_writing(self._collectives, "Rows", str(self._path)):
            part = self._writing.enter_context(part_files(self._second, self._collectives.rank))
            for position, name in enumerate(self._tables):
                files = self._writing.enter_context(part.of_table(position))
                kept: list[Arrays] = []
                self._rest.append((files, kept))
                of_table = changes.get(name, []) if are_complete[position] else None
                for chunk in self._changed(name, of_table):
                    memory -= _bytes(chunk.values())
                    kept.append(chunk)
                    if memory < 0:
                        _append(files, kept)

    def _changed(self, name: str, changes: Sequence[Changes] | None) -> Iterable[Arrays]:
        """Returns what the second pass has of a table; the changes are None if they are unknown."""
        if changes is None or not self._uses_first:
            since = self._since[name] if self._uses_first else None
            for chunk in snapshot.row_chunks(self._local, name, since):
                yield chunk.arrays()
        else:
            for each in changes:
                for part in snapshot.slices_of(len(each.ids), self._tables[name]):
                    ids, numbers = each.ids[part], each.numbers[part]
                    yield RowChunk(each.shard, name, ids, numbers, None, grows=True).arrays()
                yield {REMOVED: each.removed}
        yield snapshot.extra_arrays(self._local, name)

    def write_rest(self) -> None:
        """Writes what `cut` has kept.

        Raises:
          OSError: if a file cannot be written.
        """
        with self._writing:
            for files, kept in self._rest:
                _append(files, kept)

    def publish(self) -> None:
        """Makes the files the directory's saved rows, once all workers have written theirs.

        Raises:
          OSError: if the first worker cannot write.
        """
        if self._collectives.rank == 0:
            folders = [self._first, self._second] if self._uses_first else [self._second]
            for folder in folders:
                flush_to_disk(folder)
            if not self._uses_first:
                remove(self._first)
            names = [folder.name for folder in folders]
            write_latest(
                self._path,
                self._tables,
                {
                    "folders": names,
                    "seen": names,
                    "steps": self._steps,
                    "workers": dict.fromkeys(names, self._collectives.size),
                    "checked": names,
                },
            )


def _append(files: NpyWriter, kept: list[Arrays]) -> None:
    while kept:
        files.append(kept.pop(0))


def _bytes(arrays: Iterable[np.ndarray]) -> int:
    return sum(array.nbytes for array in arrays)
