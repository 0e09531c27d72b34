"""The files that a split writes: either all of them appear, or none."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import re
import resource
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, cast

from tf_config.errors import ClusterConfigError, quoted

_BUFFER_BYTES = 1 << 16
_ALL_BUFFERS_BYTES = 1 << 26
_LEAST_BUFFER_BYTES = 1 << 12
_OTHER_OPEN_FILES = 16  # the standard streams, the input and inherited files


def shard_names(name: str, count: int, is_packed: bool) -> list[str]:
    """Returns the file names of the shards of a source named `name`.

    >>> shard_names("train.txt", 2, is_packed=False)
    ['train.txt-00000', 'train.txt-00001']
    """
    return [f"{name}-{index:05}{'.gz' if is_packed else ''}" for index in range(count)]


def check_free(directory: Path, name: str) -> None:
    """Checks that `directory` contains no shards of a source named `name`.

    Raises:
      ClusterConfigError: if it does; otherwise, workers would also read the shards of an old split.
    """
    pattern = re.compile(re.escape(name) + r"-\d{5}(\.gz)?")
    with _explain_write_errors(directory):
        present = sorted(os.listdir(directory)) if directory.exists() else []
    for file in present:
        if pattern.fullmatch(file):
            raise ClusterConfigError(
                "A split cannot be written to a directory with files of another split. Received: "
                f"{quoted(str(directory / file))}, which exists. Remove the files of the other "
                "split, or use another --output-dir."
            )


@contextlib.contextmanager
def new_files(directory: Path, names: Sequence[str], is_packed: bool) -> Iterator[list[BinaryIO]]:
    """Creates a file for each name; the files appear when the block ends without an error.

    Until then, they are in a hidden subdirectory of `directory`, which is also removed after an
    error. `directory` is created if it does not exist.

    Yields:
      The files to write, in the order of their names.

    Raises:
      ClusterConfigError: if a file cannot be created or written.
    """
    _check_limit(len(names))
    buffer = min(_BUFFER_BYTES, max(_ALL_BUFFERS_BYTES // len(names), _LEAST_BUFFER_BYTES))
    with (
        _explain_write_errors(directory),
        _make_directory(directory),
        tempfile.TemporaryDirectory(
            prefix=".tf-config-split-", dir=directory, ignore_cleanup_errors=True
        ) as hidden,
    ):
        with contextlib.ExitStack() as files:
            yield [
                files.enter_context(_create(Path(hidden, name), is_packed, buffer))
                for name in names
            ]
        _move(Path(hidden), directory, names)


def _create(path: Path, is_packed: bool, buffer: int) -> BinaryIO:
    if not is_packed:
        return path.open("xb", buffer)
    # Level 6 is gzip's default. Without a timestamp, the output depends only on the input.
    packed = gzip.GzipFile(path, "xb", compresslevel=6, mtime=0)
    return io.BufferedWriter(cast(io.RawIOBase, packed), buffer)


def _move(source: Path, target: Path, names: Sequence[str]) -> None:
    moved: list[Path] = []
    try:
        for name in names:
            # os.replace alone would overwrite a file that another process creates in the meantime.
            (target / name).touch(exist_ok=False)
            moved.append(target / name)
            os.replace(source / name, target / name)
    except BaseException:
        for path in moved:
            path.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _make_directory(directory: Path) -> Iterator[None]:
    """Creates a directory and its parents; removes the created ones if the block fails."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for path in missing:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise


@contextlib.contextmanager
def _explain_write_errors(directory: Path) -> Iterator[None]:
    """Converts errors of the operating system to a `ClusterConfigError`."""
    try:
        yield
    except OSError as error:
        raise ClusterConfigError(
            "--output-dir must name a writable directory with enough free space. Received: "
            f"{quoted(str(directory))} ({error.strerror or error}). No files were left there. Use "
            "another directory."
        ) from None


def _check_limit(count: int) -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and count + _OTHER_OPEN_FILES > limit:
        raise ClusterConfigError(
            f"The number of shards cannot exceed the limit on open files. Received: {count} "
            f"shards, and a limit of {limit} open files. Request fewer shards, or raise the limit: "
            f"ulimit -n {count + _OTHER_OPEN_FILES}."
        )
