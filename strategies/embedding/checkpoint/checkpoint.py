"""Checkpoints of rows: each worker writes its part, any number of workers reads them.

A directory has a folder for each time that was saved to it, and a file `latest` that names the
last whole one, and those that it builds on. `latest` is put in place when all parts are written:
a job that is killed while saving leaves what was saved before. A part is one `.npy` file for each
array of `snapshot`, which NumPy alone can read. It is written and read in chunks: the memory for
that does not grow with the rows, but for a list of their ids and numbers while they are saved.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.collectives import Collectives
from strategies.embedding.checkpoint import npy_stream, snapshot
from strategies.embedding.checkpoint.npy_stream import NpyWriter, read_chunks
from strategies.embedding.shard.shard import TableShard

_LATEST = "latest"


def save(
    shards: Sequence[TableShard], directory: str, collectives: Collectives, delta: bool
) -> str:
    """Saves the rows of all workers, which all call it; returns the name of the new folder.

    Args:
      shards: shards of the tables.
      directory: a directory that all workers see.
      collectives: the workers.
      delta: whether to write only rows that were trained on since the directory was saved to.

    Raises:
      ValueError: if there is nothing that a delta could build on.
    """
    path = Path(directory)
    before = _read(path)
    if delta and before is None:
        raise ValueError(
            "A delta holds what changed since rows were saved. Received: a directory without "
            f"any, {directory!r}. Save all rows there first."
        )
    chain = [] if before is None else before["folders"]
    number = 1 + max((int(name) for name in before["seen"]), default=0) if before else 1
    if collectives.rank == 0:
        # A job that was killed while saving may have left other arrays there than come now.
        _remove(path / f"{number:06d}")
    # No worker may read `latest` after another one has written it, nor write to what is removed.
    number = int(collectives.broadcast(tf.constant(number)))
    folder = path / f"{number:06d}"
    folder.mkdir(parents=True, exist_ok=True)
    since = before["steps"] if delta and before is not None else None
    tables, local = shards[0].tables, [shard for shard in shards if shard.is_local_owner]
    for position, name in enumerate(tables):
        after = None if since is None else since[name]
        with NpyWriter(partial(_file, folder, position, collectives.rank)) as files:
            for chunk in snapshot.row_chunks(local, name, after):
                files.append(chunk)
            files.append(snapshot.extra_arrays(local, name))
    steps = {name: int(snapshot.step_of(shards[0], name)) for name in tables}
    collectives.all_gather(tf.constant([0]))  # all parts are written
    if collectives.rank == 0:
        folders = [*chain, folder.name] if delta else [folder.name]
        latest = {
            "folders": folders,
            "seen": [*(before["seen"] if before else []), folder.name],
            "steps": steps,
            "tables": {name: table.config.output_dim for name, table in tables.items()},
            "workers": {**(before["workers"] if delta and before else {}),
                        folder.name: collectives.size},
        }  # fmt: skip
        new = path / f".{_LATEST}"
        new.write_text(json.dumps(latest, indent=1))
        new.replace(path / _LATEST)
        for name in set(chain) - set(folders):
            _remove(path / name)
    collectives.all_gather(tf.constant([0]))
    return str(folder)


def load(shards: Sequence[TableShard], directory: str) -> None:
    """Sets the rows to the saved ones, by any number of workers.

    Args:
      shards: shards of the tables.
      directory: the directory that they were saved to.

    Raises:
      ValueError: if nothing was saved there, or other tables.
    """
    path = Path(directory)
    latest = _read(path)
    if latest is None:
        raise ValueError(
            "Rows are restored from a directory that they were saved to. Received: "
            f"{directory!r}, which has no file {_LATEST!r}."
        )
    tables = shards[0].tables
    widths = {name: table.config.output_dim for name, table in tables.items()}
    if latest["tables"] != widths:
        raise ValueError(
            "Rows are restored to tables of the same names and widths. Received: "
            f"{latest['tables']} in {directory!r}, for {widths}."
        )
    local = [shard for shard in shards if shard.is_local_owner]
    snapshot.clear(local)
    for folder in latest["folders"]:
        for position, name in enumerate(tables if local else ()):
            ranks = range(latest["workers"][folder])
            _load_table(local, name, [_files(path / folder, position, rank) for rank in ranks])
    for name in tables:
        snapshot.set_step(local, name, latest["steps"][name])


def _load_table(
    shards: Sequence[TableShard], name: str, parts: Sequence[Mapping[str, Path]]
) -> None:
    """Sets the rows of one table from the files of all workers that saved it."""
    for shard in shards:
        if any(snapshot.PRESENT in part for part in parts):
            snapshot.retain(shard, name, _present_ids(shard, name, parts))
    for part in parts:
        rows = {key: part[key] for key in part if snapshot.is_row_array(key)}
        for chunk in read_chunks(rows):
            for shard in shards:
                snapshot.restore_rows(shard, name, chunk)
    extra = [
        {key: npy_stream.load(file) for key, file in part.items() if snapshot.is_extra_array(key)}
        for part in parts
    ]
    for shard in shards:
        snapshot.restore_extra(shard, name, snapshot.joined(extra))


def _present_ids(shard: TableShard, name: str, parts: Sequence[Mapping[str, Path]]) -> np.ndarray:
    """Returns the saved ids that had rows, of those that are in a shard."""
    of_parts = [
        chunk[snapshot.PRESENT][shard.has(name, chunk[snapshot.PRESENT])]
        for part in parts
        for chunk in read_chunks({key: part[key] for key in part if key == snapshot.PRESENT})
    ]
    return np.concatenate(of_parts)


def _files(folder: Path, position: int, rank: int) -> dict[str, Path]:
    """Returns the files of a table that one worker wrote, by the names of the arrays."""
    prefix = _file(folder, position, rank, "").stem
    return {_key(file.name.removeprefix(prefix)): file for file in folder.glob(f"{prefix}*.npy")}


def _file(folder: Path, position: int, rank: int, key: str) -> Path:
    """Returns the path of the file of an array.

    >>> _file(Path("rows"), 0, 1, "slot/momentum").name
    'table0-worker1-slot.momentum.npy'
    """
    return folder / f"table{position}-worker{rank}-{key.replace('/', '.')}.npy"


def _key(name: str) -> str:
    return name.removesuffix(".npy").replace(".", "/", 1)


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _read(path: Path) -> dict[str, Any] | None:
    file = path / _LATEST
    return json.loads(file.read_text()) if file.exists() else None
