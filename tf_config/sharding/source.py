"""The source of a split: a file, or all files in a directory."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from tf_config.errors import ClusterConfigError, quoted
from tf_config.sharding.records import FORMATS, Piece, guess_format

_BUFFER_BYTES = 1 << 18
_HEAD_BYTES = 1 << 12
_GZIP_MAGIC = b"\x1f\x8b\x08"


@dataclass(frozen=True)
class _Kind:
    format: str
    is_packed: bool

    def __str__(self) -> str:
        return f"{self.format}, {'compressed' if self.is_packed else 'not compressed'}"


@dataclass(frozen=True)
class Source:
    """The files to split, in order; all have the same format and compression.

    Attributes:
      name: the name from which the names of the shards are derived.
      paths: the non-empty files.
      format: a key of `FORMATS`.
      is_packed: whether the files are compressed with gzip.
      size: the total size of the files in bytes.
    """

    name: str
    paths: tuple[Path, ...]
    format: str
    is_packed: bool
    size: int

    @classmethod
    def find(cls, path: Path, format: str | None = None) -> Source:
        """Returns the source at `path`.

        Args:
          path: a file, or a directory, whose files except hidden ones are used, sorted by name.
          format: a key of `FORMATS`; None to detect it from the content and name of each file.

        Raises:
          ClusterConfigError: if a file cannot be read, or files differ in format or compression.
        """
        kinds = {file: kind for file in _files(path) if (kind := _kind(file, format))}
        kind = _common(kinds)
        name = os.path.basename(os.path.abspath(path))
        return cls(
            name=name.removesuffix(".gz") if kind.is_packed else name,
            paths=tuple(kinds),
            format=kind.format,
            is_packed=kind.is_packed,
            size=sum(file.stat().st_size for file in kinds),
        )

    def records(self, watch: Callable[[int], None]) -> Generator[Piece, None, None]:
        """Yields the records of all files.

        Args:
          watch: called with the number of bytes after each read; an error that it raises ends the
            iteration.

        Raises:
          ClusterConfigError: if a file cannot be read or is corrupt.
        """
        for path in self.paths:
            with _reading(path), _open(path, self.is_packed, watch) as file:
                yield from FORMATS[self.format](file, path)


class _WatchedFile(io.FileIO):
    """A file that reports the number of bytes of each read."""

    def __init__(self, path: Path, watch: Callable[[int], None]):
        super().__init__(path)
        self._watch = watch

    def readinto(self, buffer: Any) -> int:
        count = super().readinto(buffer)
        self._watch(count)
        return count


@contextlib.contextmanager
def _open(path: Path, is_packed: bool, watch: Callable[[int], None]) -> Iterator[BinaryIO]:
    with io.BufferedReader(_WatchedFile(path, watch), _BUFFER_BYTES) as file:
        if not is_packed:
            yield file
        else:
            unpacked = cast(io.RawIOBase, gzip.GzipFile(fileobj=file))
            with io.BufferedReader(unpacked, _BUFFER_BYTES) as buffered:
                yield buffered


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Converts errors in reading a file to a `ClusterConfigError`."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ClusterConfigError(
            "An input must be a readable file, or a directory of such files. Received: "
            f"{quoted(str(path))} ({reason}). Correct the path, or get a complete copy of the file."
        ) from None


def _files(path: Path) -> Iterator[Path]:
    with _reading(path):
        path.stat()
        if not path.is_dir():
            files = [path]
        else:
            files = [file for file in sorted(path.iterdir()) if file.name[0] != "."]
    for file in files:
        with _reading(file):
            is_file, is_directory = file.is_file(), file.is_dir()
        # An entry that is neither a file nor a directory (a broken link, a pipe) is an error:
        # if it were skipped, its records would be silently missing.
        if is_file:
            yield file
        elif not is_directory:
            raise ClusterConfigError(
                "An input must be a readable file, or a directory of such files. Received: "
                f"{quoted(str(file))}, which is not a regular file. Remove it, or write its "
                "content to a file."
            )


def _kind(path: Path, format: str | None) -> _Kind | None:
    """Returns the format and compression of a file; None if it is empty."""
    with _reading(path):
        with path.open("rb") as file:
            is_packed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC or path.suffix == ".gz"
        with _open(path, is_packed, lambda count: None) as unpacked:
            head = unpacked.read(_HEAD_BYTES)
        return _Kind(format or guess_format(head, path), is_packed) if head else None


def _common(kinds: Mapping[Path, _Kind]) -> _Kind:
    """Returns the format and compression that all files share; text if there are no files."""
    first = next(iter(kinds), None)
    for path, kind in kinds.items():
        if first is not None and kind != kinds[first]:
            raise ClusterConfigError(
                "The files of an input must be all text or all TFRecords, and all compressed with "
                f"gzip or none. Received: {quoted(str(first))} ({kinds[first]}) and "
                f"{quoted(str(path))} ({kind}). Move the files of one kind to another directory."
            )
    return _Kind("text", False) if first is None else kinds[first]
