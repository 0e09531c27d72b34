"""Files that are either complete or absent: a crash or a full disk leaves the previous ones intact.

[Note: complete or absent]
New data are written under another name and flushed to disk, and then renamed; the directory is
flushed last, because a name that is not on disk is lost in a power failure. Data that consist of
several files are written to a new directory, and after all of them one small file that names this
directory is replaced (`write_json`): until then the previous data are valid, from then on the new
ones. Only then are the previous ones removed. If a worker cannot write, all workers stop
(`all_writing`), and the previous data stay valid.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from strategies.collectives import Collectives
from strategies.diagnostics.consistency import raise_on_all

_CHECKSUM = "crc32"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def remove(folder: Path) -> None:
    """Removes a directory and its contents, if it exists."""
    if folder.exists():
        shutil.rmtree(folder)


@contextlib.contextmanager
def all_writing(
    collectives: Collectives, what: str, directory: str, folder: Path | None = None
) -> Iterator[None]:
    """Waits for all workers after the block; if one of them cannot write, raises on all.

    Args:
      collectives: the workers.
      what: what is being saved, for the message, such as "Rows".
      directory: the directory, for the message.
      folder: a directory to remove in that case, to free its space.

    Raises:
      OSError: on a worker that cannot write.
      RuntimeError: on the other workers.
    """
    error = None
    try:
        yield
    except OSError as raised:
        remedy = (
            "Free some space" if raised.errno in _FULL else "Use a directory that can be written to"
        )
        error = OSError(
            raised.errno,
            f"{what} cannot be saved. Received: {raised.strerror}, in {directory!r}. Anything "
            f"saved there before is intact. {remedy}, and save again",
        )
    try:
        raise_on_all(collectives, "Saving", error)
    except (OSError, RuntimeError):
        if collectives.rank == 0 and folder is not None:
            with contextlib.suppress(OSError):
                remove(folder)
        raise


def flush_to_disk(path: Path) -> None:
    """Flushes a file, or the names of the files of a directory, to disk.

    Both survive a power failure then.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # not supported by the file system
            raise
    finally:
        os.close(descriptor)


def write_file(path: Path, data: bytes) -> None:
    """Writes a file atomically."""
    new = path.with_name(f".{path.name}")
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    flush_to_disk(path.parent)


def write_npz(file: IO[bytes], arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays as `numpy.savez` does, but never as pickles.

    Before version 2.2, NumPy would treat `savez(..., allow_pickle=False)` as one more array.

    >>> import io
    >>> file = io.BytesIO()
    >>> write_npz(file, {"a": np.arange(2)})
    >>> np.load(io.BytesIO(file.getvalue()))["a"]
    array([0, 1])

    Args:
      file: a binary file.
      arrays: arrays of numbers, booleans or bytes, by name.

    Raises:
      ValueError: if an array holds Python objects.
    """
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Writes a JSON file atomically, with a checksum."""
    text = json.dumps({**values, _CHECKSUM: _checksum_of(values)}, indent=1)
    write_file(path, text.encode())


def read_json(path: Path) -> dict[str, Any]:
    """Returns the values that `write_json` wrote; in version 0.1.0, it wrote no checksum.

    Raises:
      ValueError: if the file is damaged.
    """
    try:
        values = json.loads(path.read_text())
        if not isinstance(values, dict):
            raise ValueError("no mapping")
        # Version 0.1.0 wrote none of these keys. If a damaged byte changes one, the others remain.
        if {"checked", "files", _CHECKSUM} & set(values):
            checksum = values.pop(_CHECKSUM, None)
            if checksum != _checksum_of(values):
                raise ValueError("its checksum does not match")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the file {path.name!r}, which is damaged ({error})") from None
    return values


def _checksum_of(values: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(values, sort_keys=True).encode())
