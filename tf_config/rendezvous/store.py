"""Key-value stores through which the processes of a job exchange small entries."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from tf_config.cluster import Task


class Store(Protocol):
    """A key-value store that all processes of a job can reach.

    An entry is complete as soon as it is visible. As callers poll, an entry that is temporarily
    unavailable may be reported as one that does not exist.
    """

    def put(self, key: Task | str, value: bytes) -> bool:
        """Writes the entry of a task or name; returns whether the store accepted it."""

    def get(self, key: Task | str) -> bytes | None:
        """Returns an entry; None if it does not exist, or the store did not answer."""


class FileStore:
    """A `Store` in a directory that all processes share, with a file for each entry.

    Its methods raise OSError if the directory cannot be read or written.

    Args:
      directory: the directory, which must exist.
    """

    def __init__(self, directory: Path):
        self.directory = directory

    def file(self, key: Task | str) -> Path:
        """Returns the file of an entry, which may not exist."""
        return self.directory / f"{name_of(key)}.json"

    def put(self, key: Task | str, value: bytes) -> bool:
        """Writes an entry; see `Store`."""
        file = self.file(key)
        draft = file.with_name(f".{file.name}.{os.getpid()}.{os.urandom(4).hex()}")
        draft.write_bytes(value)
        draft.replace(file)
        return True

    def get(self, key: Task | str) -> bytes | None:
        """Returns an entry; see `Store`."""
        try:
            return self.file(key).read_bytes()
        except FileNotFoundError:
            return None

    def delete(self, key: Task | str) -> None:
        """Deletes an entry, if it exists."""
        self.file(key).unlink(missing_ok=True)


def name_of(key: Task | str) -> str:
    """Returns the name of an entry, given a task or the name itself."""
    return key if isinstance(key, str) else key.label
