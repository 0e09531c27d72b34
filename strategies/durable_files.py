"""Files that are whole or not there: a crash or a full disk leaves those from before.

What is written goes to a new place, is sent to the disk, and takes its name last.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from strategies.collectives import Collectives
from strategies.collectives.health.agreement import succeed_together

_CHECKSUM = "crc32"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def remove(folder: Path) -> None:
    """Removes a directory with all that is in it, if there is one."""
    if folder.exists():
        shutil.rmtree(folder)


@contextlib.contextmanager
def all_writing(
    collectives: Collectives, what: str, directory: str, folder: Path | None = None
) -> Iterator[None]:
    """Waits for all workers behind the block; if one cannot write, raises on all of them.

    Args:
      collectives: the workers.
      what: is written, for the message: "Rows".
      directory: for the message.
      folder: what is removed then, to make room.
    """
    error = None
    try:
        yield
    except OSError as raised:
        way_out = (
            "Make room" if raised.errno in _FULL else "Name a directory that can be written to"
        )
        error = OSError(
            raised.errno,
            f"{what} are saved to files. Received: {raised.strerror}, in {directory!r}. What was "
            f"saved there before is whole. {way_out}, and save again",
        )
    try:
        succeed_together(collectives, "Saving", error)
    except (OSError, RuntimeError):
        if collectives.rank == 0 and folder is not None:
            with contextlib.suppress(OSError):
                remove(folder)
        raise


def sync_directory(path: Path) -> None:
    """Has the names of a directory's files survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that know no such thing
            raise
    finally:
        os.close(descriptor)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Writes a file that is whole from the first moment it can be seen, with its checksum."""
    new = path.with_name(f".{path.name}")
    with new.open("w") as file:
        json.dump({**values, _CHECKSUM: _checksum_of(values)}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync_directory(path.parent)


def read_json(path: Path) -> dict[str, Any]:
    """Returns what `write_json` wrote, or 0.1.0, which wrote no checksum.

    Raises:
      ValueError: if it is something else.
    """
    try:
        values = json.loads(path.read_text())
        if not isinstance(values, dict):
            raise ValueError("no mapping")
        # 0.1.0 wrote none of these; a byte that changed in one of them leaves the others.
        if {"checked", "files", _CHECKSUM} & set(values):
            checksum = values.pop(_CHECKSUM, None)
            if checksum != _checksum_of(values):
                raise ValueError("its checksum is another one")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the file {path.name!r}, which is damaged ({error})") from None
    return values


def _checksum_of(values: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(values, sort_keys=True).encode())
