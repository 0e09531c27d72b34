"""NumPy's files of arrays, written and read in pieces, so that no array is in memory as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np

# What is read at once, of all arrays together.
_PIECE_BYTES = 1 << 24


class ArrayFiles:
    """Files of arrays by name, each as long as the pieces that are added to it.

    >>> import tempfile
    >>> directory = Path(tempfile.mkdtemp())
    >>> with ArrayFiles(lambda name: directory / f"{name}.npy") as files:
    ...     files.add({"ids": np.array([3, 4])})
    ...     files.add({"ids": np.array([5])})
    >>> np.load(directory / "ids.npy").tolist()
    [3, 4, 5]

    Args:
      path_of: returns the path of an array's file.
    """

    def __init__(self, path_of: Callable[[str], Path]):
        self._path_of = path_of
        self._files: dict[str, _ArrayFile] = {}

    def add(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Adds to arrays, along their first dimension."""
        for name, array in arrays.items():
            if name not in self._files:
                self._files[name] = _ArrayFile(self._path_of(name), array)
            self._files[name].add(array)

    def __enter__(self) -> ArrayFiles:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in self._files.values():
            file.close()


class _ArrayFile:
    """One file; its header is written again when its length is known.

    NumPy leaves room for any length in the header, so that it stays as long as it is.
    """

    def __init__(self, path: Path, like: np.ndarray):
        self._like = like[:0]
        self._length = 0
        self._file: BinaryIO = path.open("wb")
        self._write_header()

    def add(self, array: np.ndarray) -> None:
        self._length += len(array)
        self._file.write(np.ascontiguousarray(array).data)

    def close(self) -> None:
        self._file.seek(0)
        self._write_header()
        self._file.close()

    def _write_header(self) -> None:
        header = np.lib.format.header_data_from_array_1_0(self._like)
        header["shape"] = (self._length, *self._like.shape[1:])
        np.lib.format.write_array_header_1_0(self._file, header)


def pieces_in(files: Mapping[str, Path]) -> Iterator[dict[str, np.ndarray]]:
    """Yields arrays of one length in pieces, a piece of each; one at least if there are files.

    Args:
      files: by the arrays' names.

    Raises:
      ValueError: if they are not of one length.
    """
    arrays = {name: np.load(path, mmap_mode="r") for name, path in files.items()}
    lengths = {path.name: len(arrays[name]) for name, path in files.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(
            f"Files of the same rows have as many each. Received: {lengths}. Save them again."
        )
    length = max(lengths.values(), default=0)
    row = sum(array[:1].nbytes for array in arrays.values()) or 1
    step = max(_PIECE_BYTES // row, 1)
    del arrays  # what is read of a mapped file stays in memory as long as it is mapped
    for start in range(0, max(length, 1), step) if files else ():
        yield {
            name: np.array(np.load(path, mmap_mode="r")[start : start + step])
            for name, path in files.items()
        }
