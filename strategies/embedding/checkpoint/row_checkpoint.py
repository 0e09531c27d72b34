"""Checkpoints of rows: each worker writes its part, and any number of workers can read the parts.

A checkpoint directory has one folder for each save, and a file `latest` that names the last
complete folder and those that it builds on. `latest` is replaced once all parts are written, so a
job that is killed while saving keeps the previous checkpoint. A part is one `.npy` file for each
array of `array_specs`, readable with NumPy alone. Parts are written and read in chunks, so memory
use does not grow with the rows, except for a list of their ids and numbers during a save. Servers
write the parts with their rows themselves if they can; see `server_files.py`.

Each worker writes a manifest with the sizes and checksums of its files, and no row is restored
before all files of all workers have been verified. Folders of version 0.1.0 have no manifest; of
these, only the shapes and dtypes of the arrays are verified.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.collectives import Collectives
from strategies.diagnostics.consistency import raise_on_all
from strategies.embedding.checkpoint import array_specs, npy_stream, snapshot
from strategies.embedding.checkpoint.npy_stream import read_chunks
from strategies.embedding.checkpoint.part_files import (
    check_sums,
    files_of_table,
    manifest_of,
    part_files,
    parts_of,
)
from strategies.embedding.checkpoint.row_changes import Mark, RowChanges, mark
from strategies.embedding.checkpoint.server_files import ServerFiles
from strategies.embedding.shard.table import Table
from strategies.embedding.shard.table_shard import TableShard
from strategies.files.atomic_files import (
    all_writing,
    flush_to_disk,
    read_json,
    remove,
    write_json,
)

_LATEST = "latest"


class DeltaBases:
    """Directories whose rows differ from the current ones only by later training.

    A row records when it was trained on, but not whether it was set or restored. So a delta can
    only build on rows that these tables saved to a directory or loaded from it, unless rows have
    since changed other than by training, or another job saved to the directory.

    Attributes:
      changes: the number of times that rows changed other than by training.
    """

    def __init__(self) -> None:
        self._latest: dict[Path, Any] = {}
        self._marks: dict[Path, Mark] = {}
        self.changes = 0

    def clear(self) -> None:
        """Removes all directories, when rows change other than by training."""
        self._latest.clear()
        self.changes += 1

    def add(self, path: Path, shards: Sequence[TableShard]) -> None:
        """Adds a directory that the rows of shards were just saved to or loaded from."""
        self._latest[path.resolve()] = _read(path)
        self._marks[path.resolve()] = mark(shards, self.changes)

    def mark_of(self, path: Path) -> Mark:
        """Returns the moment at which the rows were those of a directory."""
        return self._marks[path.resolve()]

    def has(self, path: Path, latest: Any, collectives: Collectives) -> bool:
        """Returns whether a delta can build on a directory; all workers must call it."""
        is_known = latest is not None and self._latest.get(path.resolve()) == latest
        return bool(collectives.all_gather(tf.constant([is_known], tf.int32)).numpy().all())


def save(
    shards: Sequence[TableShard],
    directory: str,
    collectives: Collectives,
    delta: bool,
    bases: DeltaBases,
) -> str:
    """Saves the rows of all workers; all workers must call it.

    Args:
      shards: shards of the tables.
      directory: a directory that all workers can access.
      collectives: collectives among the workers.
      delta: whether to write only the rows that were trained on since the last save, if `bases`
        has the directory.
      bases: directories that a delta can build on; this one is added.

    Returns:
      The path of the new folder.

    Raises:
      ValueError: if `delta` is true and the directory has no saved rows, or the names of the slot
        variables differ between workers.
      OSError: if a file cannot be written. The previous checkpoint is unchanged.
      RuntimeError: if a file cannot be written on another worker.
    """
    snapshot.check_same_slots(shards, collectives)
    path = Path(directory)
    before = _read(path)
    if delta and before is None:
        raise ValueError(
            f"A delta requires rows saved earlier in the same directory. Received: {directory!r}, "
            "which has none. Save all rows there first."
        )
    delta = delta and bases.has(path, before, collectives)
    chain = [] if before is None else before["folders"]
    number = 1 + max((int(name) for name in before["seen"]), default=0) if before else 1
    number = int(collectives.broadcast(tf.constant(number)))
    folder = path / f"{number:06d}"
    since = before["steps"] if delta and before is not None else None
    changes = None
    if delta:
        changes = RowChanges(shards, bases.mark_of(path), bases.changes, collectives)
    tables = shards[0].tables
    make_folders([folder], directory, collectives)
    with all_writing(collectives, "Rows", directory, folder):
        _write_part(shards, folder, collectives.rank, since, changes)
    with all_writing(collectives, "Rows", directory):
        if collectives.rank == 0:
            # Workers that have ended, or have not joined an elastic job, have written nothing.
            for rank in range(collectives.size):
                if not manifest_of(folder, rank).exists():
                    write_json(manifest_of(folder, rank), {"files": {}})
            flush_to_disk(folder)
            folders = [*chain, folder.name] if delta else [folder.name]
            known = before if delta and before else {"workers": {}, "checked": []}
            latest = {
                "folders": folders,
                "seen": [*(before["seen"] if before else []), folder.name],
                "steps": {name: int(snapshot.step_of(shards[0], name)) for name in tables},
                "workers": {**known["workers"], folder.name: collectives.size},
                "checked": [*known.get("checked", []), folder.name],
            }
            write_latest(path, tables, latest)
            for name in set(chain) - set(folders):
                remove(path / name)
    bases.add(path, shards)
    return str(folder)


def make_folders(folders: Sequence[Path], directory: str, collectives: Collectives) -> None:
    """Creates empty folders for all workers' files; all workers must call it.

    No worker may write to a folder before this has returned on all of them: a job that was killed
    while saving may have left a folder of this name, which is removed.
    """
    with all_writing(collectives, "Rows", directory, folders[0]):
        for folder in folders if collectives.rank == 0 else ():
            remove(folder)
            folder.mkdir(parents=True)


def write_latest(path: Path, tables: Mapping[str, Table], values: Mapping[str, Any]) -> None:
    """Writes the file that makes folders the saved rows of a directory."""
    widths = {name: table.config.output_dim for name, table in tables.items()}
    write_json(path / _LATEST, {**values, "tables": widths})


def _write_part(
    shards: Sequence[TableShard],
    folder: Path,
    rank: int,
    since: Mapping[str, int] | None,
    changes: RowChanges | None,
) -> None:
    """Writes the rows of this worker's shards and its manifest; of a delta, those since a step."""
    local = [shard for shard in shards if shard.is_local_owner]
    with part_files(folder, rank) as part:
        servers = ServerFiles(part, local)
        for position, name in enumerate(shards[0].tables):
            after = None if since is None else since[name]
            removed = None if changes is None else changes.removed(name)
            with part.of_table(position) as files:
                for chunk in snapshot.row_chunks(
                    local, name, after, chunk_bytes=servers.chunk_bytes
                ):
                    # A list of the ids that are left is not needed if the removed ones are known.
                    known = chunk if removed is None else replace(chunk, present=None)
                    servers.append(files, position, known)
                if removed is not None and local:
                    files.append({array_specs.REMOVED: removed})
                files.append(snapshot.extra_arrays(local, name))


def load(shards: Sequence[TableShard], directory: str, collectives: Collectives) -> None:
    """Restores the saved rows with any number of workers; restores none if a file is damaged.

    Args:
      shards: shards of the tables.
      directory: directory of the checkpoint.
      collectives: collectives among the workers.

    Raises:
      ValueError: if the directory has no saved rows, or those of other tables, or a file is
        damaged.
      RuntimeError: if another worker raised an error.
    """
    error = None
    try:
        latest = _verify(shards, Path(directory), collectives)
    except (OSError, ValueError) as raised:
        error = raised
    raise_on_all(collectives, "Restoring rows", error)
    local = [shard for shard in shards if shard.is_local_owner]
    path, tables = Path(directory), shards[0].tables
    snapshot.clear(shards)
    for folder in latest["folders"]:
        for position, name in enumerate(tables):
            _load_table(
                shards,
                name,
                [
                    files_of_table(path / folder, position, part)
                    for rank in range(latest["workers"][folder])
                    for part in parts_of(path / folder, rank)
                ],
            )
    for name in tables:
        snapshot.set_step(local, name, latest["steps"][name])


def _verify(shards: Sequence[TableShard], path: Path, collectives: Collectives) -> dict[str, Any]:
    """Returns the content of `latest` after verifying the files, a part of them on each worker."""
    directory = str(path)
    latest = _read(path)
    if latest is None:
        raise ValueError(
            f"The directory must contain saved rows. Received: {directory!r}, which has no file "
            f"{_LATEST!r}."
        )
    tables = shards[0].tables
    widths = {name: table.config.output_dim for name, table in tables.items()}
    if latest["tables"] != widths:
        raise ValueError(
            "The tables must have the same names and widths as the saved ones. Received: "
            f"{latest['tables']} in {directory!r}, for {widths}."
        )
    try:
        for folder in latest["folders"]:
            workers = latest["workers"][folder]
            for rank in range(collectives.rank, workers, collectives.size):
                if folder in latest.get("checked", ()):
                    check_sums(path / folder, rank)
                for part, (position, name) in itertools.product(
                    parts_of(path / folder, rank), enumerate(tables)
                ):
                    files = files_of_table(path / folder, position, part)
                    has_rows = any(map(array_specs.is_row_array, files))
                    if has_rows or not _is_saved_by_others(path / folder, position):
                        _check_arrays(shards[0], name, files)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"The files of saved rows must be complete and unchanged. Received: {error}, in "
            f"{directory!r}. No row was changed. Restore another checkpoint."
        ) from error
    return latest


def _is_saved_by_others(folder: Path, position: int) -> bool:
    """Returns whether a worker may have saved no rows of a table, because others have.

    One worker saves the rows of each parameter server, and there may be fewer servers than workers.
    """
    return any(folder.glob(f"table{position}-worker*-ids.npy"))


def _check_arrays(shard: TableShard, name: str, files: Mapping[str, Path]) -> None:
    """Verifies the dtypes and shapes of the arrays that one worker saved of a table."""
    specs = array_specs.specs(shard.tables[name], files)
    lengths = {key: npy_stream.check(files[key], *spec) for key, spec in specs.items()}
    if "sketch" in files:
        array_specs.check_sketch(shard.tables[name], npy_stream.load(files["sketch"]))
    rows = {files[key].name: length for key, length in lengths.items()
            if array_specs.is_row_array(key)}  # fmt: skip
    if len(set(rows.values())) > 1:
        raise ValueError(f"files of the same rows with {rows} rows")


def _load_table(
    shards: Sequence[TableShard], name: str, parts: Sequence[Mapping[str, Path]]
) -> None:
    """Restores the rows of one table from the files of all workers that saved it."""
    local = [shard for shard in shards if shard.is_local_owner]
    for shard in local:
        if any(array_specs.PRESENT in part for part in parts):
            snapshot.retain(shard, name, _ids_of(shard, name, parts, array_specs.PRESENT))
        elif any(array_specs.REMOVED in part for part in parts):
            snapshot.remove(shard, name, _ids_of(shard, name, parts, array_specs.REMOVED))
    extra = snapshot.concatenate_arrays(
        [
            {
                key: npy_stream.load(file)
                for key, file in part.items()
                if array_specs.is_extra_array(key)
            }
            for part in parts
        ]
    )
    of_rows = [{key: part[key] for key in part if array_specs.is_row_array(key)} for part in parts]
    snapshot.expect_slots(shards, name, itertools.chain(*of_rows), extra)
    for rows in of_rows if local else ():
        for chunk in read_chunks(rows):
            for shard in local:
                snapshot.restore_rows(shard, name, chunk)
    for shard in local:
        snapshot.restore_extra(shard, name, extra)


def _ids_of(
    shard: TableShard, name: str, parts: Sequence[Mapping[str, Path]], key: str
) -> np.ndarray:
    """Returns the ids of an array that belong to a shard."""
    of_parts = [
        chunk[key][shard.has(name, chunk[key])]
        for part in parts
        for chunk in read_chunks({each: part[each] for each in part if each == key})
    ]
    return np.concatenate(of_parts)


def _read(path: Path) -> dict[str, Any] | None:
    """Returns the content of `latest`; None if there is no such file."""
    file = path / _LATEST
    if not file.exists():
        return None
    try:
        values = read_json(file)
        names = {"folders", "seen", "steps", "tables", "workers"}
        if not names <= set(values) or not set(values["folders"]) <= set(values["workers"]):
            raise ValueError(f"the file {_LATEST!r}, which has not {', '.join(sorted(names))}")
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"The files of saved rows must be complete and unchanged. Received: {error}, in "
            f"{str(path)!r}. Use another directory."
        ) from None
    return values
