"""Export and import of ids and rows as plain files that other systems can read and write.

A part is a file of keys, int64 [n], and a file of values, float [n, width], in NumPy's format, or
one Parquet file with the columns `key` and `value`. Each worker writes one part; any number of
workers can read any number of parts.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from strategies.collectives import Collectives
from strategies.embedding.checkpoint import npy_stream
from strategies.embedding.checkpoint.npy_stream import NpyWriter, read_chunks

FORMATS = ("npy", "parquet")
_OURS = re.compile(r"part-\d+-of-(\d+)")

Arrays = tuple[np.ndarray, np.ndarray]


def write(
    directory: str,
    format: str,
    chunks: Iterator[Mapping[str, np.ndarray]],
    collectives: Collectives,
) -> None:
    """Writes each worker's ids and rows; all workers must call it.

    Args:
      directory: the directory.
      format: one of `FORMATS`.
      chunks: chunks of `ids` and `rows`, at least one.
      collectives: collectives among the workers.

    Raises:
      ValueError: if the format is unknown, or the directory is not empty.
      ImportError: if the format requires a package that is not installed.
    """
    if format not in FORMATS:
        raise ValueError(
            f"format must be one of {', '.join(map(repr, FORMATS))}. Received: {format!r}."
        )
    write_part = _write_npy if format == "npy" else _write_parquet
    if format == "parquet":
        _parquet()
    path = Path(directory)
    there = sum(1 for _ in path.iterdir()) if path.exists() else 0
    # The first worker decides, since other workers may list files of this export already.
    there = int(collectives.broadcast(tf.constant(there)))
    if there:
        raise ValueError(
            "Rows must be exported to an empty directory, so that the parts of two exports never "
            f"mix. Received: {directory!r}, with {there} files. Empty it, or choose another."
        )
    path.mkdir(parents=True, exist_ok=True)
    part = path / f"part-{collectives.rank:05d}-of-{collectives.size:05d}"
    write_part(part, ((chunk["ids"], chunk["rows"]) for chunk in chunks))
    collectives.all_gather(tf.constant([0]))


class Part(Protocol):
    """Part of an export of this package or another system."""

    def check(self, width: int) -> None:
        """Raises ValueError if the part is damaged, or its values have another width."""

    def keys(self) -> np.ndarray:
        """Returns all keys of the part."""

    def chunks(self) -> Iterator[Arrays]:
        """Yields chunks of keys and values."""


def read(directory: str) -> list[Part]:
    """Returns the parts in a directory.

    Raises:
      ValueError: if there are no parts or parts of both formats, or a part of an export is missing.
    """
    path = Path(directory)
    keys = sorted(file for file in path.glob("*keys*.npy") if _is_of_keys(file.name))
    parquet = sorted(path.glob("*.parquet"))
    if bool(keys) == bool(parquet):
        raise ValueError(
            "A directory to import must contain .npy files such as keys.npy and values.npy, or "
            f"Parquet files. Received: {directory!r}, which contains "
            f"{'both' if keys else 'neither'}."
        )
    _check_complete([file.name for file in keys or parquet], directory)
    if keys:
        return [_NpyPart(file) for file in keys]
    return [_ParquetPart(file) for file in parquet]


def _is_of_keys(name: str) -> bool:
    """Returns whether a file is one of keys, of which the rest of the name says nothing.

    >>> _is_of_keys("monkeys-keys.npy"), _is_of_keys("monkeys-values.npy")
    (True, False)
    """
    return name.rfind("keys") > name.rfind("values")


def _check_complete(names: Sequence[str], directory: str) -> None:
    """Raises ValueError if there are files of `write` other than all parts of one export."""
    counts = [int(match[1]) for match in map(_OURS.match, names) if match]
    if counts and counts != [len(names)] * len(names):
        raise ValueError(
            f"All parts of an export must be present. Received: {', '.join(names)} in "
            f"{directory!r}. Export again, or add the missing parts."
        )


def _write_npy(path: Path, chunks: Iterator[Arrays]) -> None:
    with NpyWriter(lambda name: path.with_name(f"{path.name}-{name}.npy")) as files:
        for keys, values in chunks:
            files.append({"keys": keys, "values": values})


class _NpyPart:
    def __init__(self, file: Path):
        before, _, behind = file.name.rpartition("keys")
        values = file.with_name(f"{before}values{behind}")
        if not values.exists():
            raise ValueError(
                f"Each file of keys must have a file of values. Received: {file.name!r} without "
                f"{values.name!r}."
            )
        self._files = {"keys": file, "values": values}

    def check(self, width: int) -> None:
        arrays = {name: npy_stream.load(path, "r") for name, path in self._files.items()}
        if arrays["values"].shape != (len(arrays["keys"]), width):
            raise ValueError(
                f"The values must be rows of width {width}, one for each key. Received: values of "
                f"shape {arrays['values'].shape} for {len(arrays['keys'])} keys in "
                f"{self._files['values'].name!r}."
            )

    def keys(self) -> np.ndarray:
        return npy_stream.load(self._files["keys"])

    def chunks(self) -> Iterator[Arrays]:
        for chunk in read_chunks(self._files):
            yield chunk["keys"], chunk["values"]


def _write_parquet(path: Path, chunks: Iterator[Arrays]) -> None:
    arrow = _parquet()

    def table_of(keys: np.ndarray, values: np.ndarray) -> Any:
        rows = arrow.FixedSizeListArray.from_arrays(arrow.array(values.ravel()), values.shape[1])
        return arrow.table({"key": arrow.array(keys), "value": rows})

    tables = itertools.starmap(table_of, chunks)
    first = next(tables)
    with arrow.parquet.ParquetWriter(path.with_name(f"{path.name}.parquet"), first.schema) as file:
        for table in itertools.chain([first], tables):
            file.write_table(table)


class _ParquetPart:
    def __init__(self, file: Path):
        self._file = _parquet().parquet.ParquetFile(file)

    def check(self, width: int) -> None:
        for _, values in self.chunks():
            if len(values) and values.shape[1] != width:
                raise ValueError(
                    f"Imported rows must have width {width}. Received: {values.shape[1]}."
                )

    def keys(self) -> np.ndarray:
        return self._file.read(columns=["key"])["key"].to_numpy()

    def chunks(self) -> Iterator[Arrays]:
        for batch in self._file.iter_batches(columns=["key", "value"]):
            keys = batch["key"].to_numpy(zero_copy_only=False)
            values = batch["value"].flatten().to_numpy(zero_copy_only=False)
            yield keys, values.reshape([len(keys), values.size // max(len(keys), 1)])


def _parquet() -> ModuleType:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(
            "The format 'parquet' requires pyarrow. Received: a Python without it. Run pip install "
            "'keras-strategies[parquet]', or use the format 'npy'."
        ) from error
    return pyarrow
