"""Ids and rows in plain files, which other systems write and read.

A part is a file of keys, int64 [n], and one of values, float [n, width], in NumPy's format, or one
Parquet file with the columns `key` and `value`. Each worker writes a part; any number of workers
reads any number of parts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import tensorflow as tf

from strategies.collectives import Collectives

FORMATS = ("npy", "parquet")
_OURS = re.compile(r"part-\d+-of-(\d+)")

Arrays = tuple[np.ndarray, np.ndarray]


def write(directory: str, kind: str, rows: Arrays, collectives: Collectives) -> None:
    """Writes each worker's ids and rows; all workers call it.

    Raises:
      ValueError: if there is no such format, or something is in the directory.
      ImportError: if the format needs a package that is not there.
    """
    if kind not in FORMATS:
        raise ValueError(f"A format is one of {', '.join(map(repr, FORMATS))}. Received: {kind!r}.")
    written = _npy_written if kind == "npy" else _parquet_written
    if kind == "parquet":
        _parquet()
    path = Path(directory)
    there = sum(1 for _ in path.iterdir()) if path.exists() else 0
    # What the first worker found counts, for it waits for nobody's file.
    there = int(collectives.broadcast(tf.constant(there)))
    if there:
        raise ValueError(
            "Rows are exported to a directory of their own, so that parts of two exports never "
            f"mix. Received: {directory!r}, with {there} files. Empty it, or name another."
        )
    path.mkdir(parents=True, exist_ok=True)
    written(path / f"part-{collectives.rank:05d}-of-{collectives.size:05d}", *rows)
    collectives.all_gather(tf.constant([0]))


def read(directory: str) -> list[Callable[[], Arrays]]:
    """Returns what reads the parts of a directory, one by one: keys and values.

    Raises:
      ValueError: if there is no part, or some parts of an export are missing.
    """
    path = Path(directory)
    keys, parquet = sorted(path.glob("*keys*.npy")), sorted(path.glob("*.parquet"))
    if bool(keys) == bool(parquet):
        raise ValueError(
            "Rows are imported from a directory with files such as keys.npy and values.npy, or "
            f"with Parquet files. Received: {directory!r}, with "
            f"{'both' if keys else 'neither'}."
        )
    _check_whole([file.name for file in keys or parquet], directory)
    if keys:
        return [partial(_npy_read, file) for file in keys]
    return [partial(_parquet_read, file) for file in parquet]


def _check_whole(names: Sequence[str], directory: str) -> None:
    """Raises ValueError if names of our own are not all parts of one export."""
    counts = [int(match[1]) for match in map(_OURS.match, names) if match]
    if counts and counts != [len(names)] * len(names):
        raise ValueError(
            "All parts of one export are imported together. Received: "
            f"{', '.join(names)} in {directory!r}. Export again, or complete the directory."
        )


def _npy_written(path: Path, keys: np.ndarray, values: np.ndarray) -> None:
    np.save(path.with_name(f"{path.name}-keys.npy"), keys)
    np.save(path.with_name(f"{path.name}-values.npy"), values)


def _npy_read(file: Path) -> Arrays:
    values = file.with_name(file.name.replace("keys", "values"))
    if not values.exists():
        raise ValueError(
            "A file of keys has one of values beside it. Received: "
            f"{file.name!r} without {values.name!r}."
        )
    # Of the values, a worker loads those that it owns.
    return np.load(file), np.load(values, mmap_mode="r")


def _parquet_written(path: Path, keys: np.ndarray, values: np.ndarray) -> None:
    arrow = _parquet()
    rows = arrow.FixedSizeListArray.from_arrays(arrow.array(values.ravel()), values.shape[1])
    table = arrow.table({"key": arrow.array(keys), "value": rows})
    arrow.parquet.write_table(table, path.with_name(f"{path.name}.parquet"))


def _parquet_read(file: Path) -> Arrays:
    table = _parquet().parquet.read_table(file, columns=["key", "value"])
    keys = table["key"].to_numpy()
    values = table["value"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return keys, values.reshape([len(keys), values.size // max(len(keys), 1)])


def _parquet() -> ModuleType:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(
            "Parquet files are written and read by pyarrow. Received: a Python without it. Run "
            "pip install 'keras-strategies[parquet]', or choose the format 'npy'."
        ) from error
    return pyarrow
