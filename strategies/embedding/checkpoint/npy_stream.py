"""Streams of .npy files, written and read in chunks, so that no array is in memory as a whole."""

from __future__ import annotations

import contextlib
import io
import os
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Literal

import numpy as np

from strategies.embedding.shard.server_writer import hash_of

# A CRC-32, or what `hash_of` returns.
Checksum = int | str

# Size of a chunk of all arrays together.
_CHUNK_BYTES = 1 << 24

# NumPy parses headers with Python's parser. In Python 3.11.7, one of two threads that parse at the
# same time may raise "SystemError: AST constructor recursion depth mismatch".
_PARSING = threading.Lock()


class NpyWriter:
    """Writes each array to its own file, chunk by chunk.

    >>> import tempfile
    >>> directory = Path(tempfile.mkdtemp())
    >>> with NpyWriter(lambda name: directory / f"{name}.npy") as files:
    ...     files.append({"ids": np.array([3, 4])})
    ...     files.append({"ids": np.array([5])})
    >>> np.load(directory / "ids.npy").tolist()
    [3, 4, 5]

    Args:
      path_of: function from an array's name to the path of its file.
    """

    def __init__(self, path_of: Callable[[str], Path]):
        self._path_of = path_of
        self._files: dict[str, _NpyFile] = {}

    def has(self, name: str) -> bool:
        """Returns whether a chunk of an array was appended."""
        return name in self._files

    def append(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Appends a chunk to each array, along its first dimension."""
        for name, array in arrays.items():
            if name not in self._files:
                self._files[name] = _NpyFile(self._path_of(name), array)
            self._files[name].append(array)

    def __enter__(self) -> NpyWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            for file in self._files.values() if error is None else ():
                file.finish()
        finally:
            for file in self._files.values():
                file.close()


class _NpyFile:
    """Writes one file, and rewrites its header once the length is known.

    NumPy pads the header for any length, so its size does not change.
    """

    def __init__(self, path: Path, like: np.ndarray):
        self._like = like[:0]
        self._length = 0
        self._file: BinaryIO = path.open("wb")
        self._write_header()

    def append(self, array: np.ndarray) -> None:
        self._length += len(array)
        self._file.write(np.ascontiguousarray(array).data)

    def finish(self) -> None:
        self._file.seek(0)
        self._write_header()
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        with contextlib.suppress(OSError):  # closing flushes, which fails if the disk is full
            self._file.close()

    def _write_header(self) -> None:
        self._file.write(header(self._like.dtype, (self._length, *self._like.shape[1:])))


def read_chunks(files: Mapping[str, Path]) -> Iterator[dict[str, np.ndarray]]:
    """Yields chunks of arrays of the same length; at least one chunk if there are files.

    Args:
      files: paths of the files by the array's name.

    Raises:
      ValueError: if the arrays differ in length.
    """
    arrays = {name: load(path, "r") for name, path in files.items()}
    lengths = {path.name: len(arrays[name]) for name, path in files.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(
            f"All files of a part must have the same number of rows. Received: {lengths}. Save "
            "them again."
        )
    length = max(lengths.values(), default=0)
    row = sum(array[:1].nbytes for array in arrays.values()) or 1
    step = max(_CHUNK_BYTES // row, 1)
    del arrays  # pages read from a mapped file stay in memory as long as it is mapped
    for start in range(0, max(length, 1), step) if files else ():
        yield {
            name: np.array(load(path, "r")[start : start + step]) for name, path in files.items()
        }


def header(dtype: np.dtype | type, shape: tuple[int, ...]) -> bytes:
    """Returns the first bytes of a file, which precede those of the array's elements."""
    data = np.lib.format.header_data_from_array_1_0(np.empty((0, *shape[1:]), dtype))
    data["shape"] = shape
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, data)
    return file.getvalue()


def checksum(path: Path, like: Checksum = 0) -> Checksum:
    """Returns the CRC-32 of a file's bytes, or `hash_of` them if `like` is such a hash."""
    if isinstance(like, str):
        return hash_of(path.read_bytes())
    crc = 0
    with path.open("rb") as file:
        while data := file.read(_CHUNK_BYTES):
            crc = zlib.crc32(data, crc)
    return crc


def check(path: Path, dtype: np.dtype | type, shape: tuple[int | None, ...]) -> int:
    """Checks a file's array by the header and the file's size; returns the array's length.

    Args:
      path: path of a .npy file.
      dtype: expected dtype of the array.
      shape: expected shape of the array; None is any length.

    Raises:
      ValueError: if the file is damaged or has another array; the message names the file.
    """
    try:
        array = load(path, "r")
    except Exception as error:  # Python's parser of headers may raise any exception
        raise ValueError(f"{path.name} is damaged ({type(error).__name__}: {error})") from None
    fits = len(shape) == array.ndim and all(
        size is None or size == given for size, given in zip(shape, array.shape, strict=True)
    )
    if array.dtype != dtype or not fits:
        raise ValueError(
            f"{path.name} has {array.dtype} of shape {array.shape}, in place of "
            f"{np.dtype(dtype)} of shape {shape}"
        )
    return len(array)


def load(path: str | Path, mmap_mode: Literal["r"] | None = None) -> np.ndarray:
    """Returns the array of a .npy file like `np.load`, but is safe to call from several threads."""
    with _PARSING:
        return np.load(path, mmap_mode=mmap_mode)
