"""The files that one worker writes of a save: their names, and the manifest with their checksums.

A part of the rows is one `.npy` file for each array of `array_specs`. Each worker has a part of its
own, and further ones that servers have written for it; see `server_files.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from strategies.embedding.checkpoint import npy_stream
from strategies.embedding.checkpoint.npy_stream import Checksum, NpyWriter
from strategies.files.atomic_files import read_json, write_json


class PartFiles:
    """The files that a worker writes to a folder.

    Args:
      folder: the folder of all workers' files.
      rank: the worker that writes the files.

    Attributes:
      folder: see above.
      rank: see above.
      sums: the sizes and checksums of files that servers have written for this worker, by name.
    """

    def __init__(self, folder: Path, rank: int):
        self.folder = folder
        self.rank = rank
        self.sums: dict[str, tuple[int, Checksum]] = {}

    def of_table(self, position: int) -> NpyWriter:
        """Returns a writer of the worker's own files of a table, given the table's position."""
        return NpyWriter(partial(path_of, self.folder, position, str(self.rank)))

    def write_manifest(self) -> None:
        """Writes the sizes and checksums of all files."""
        written = sorted(self.folder.glob(f"table*-worker{self.rank}-*.npy"))
        own = {file.name: (file.stat().st_size, npy_stream.checksum(file)) for file in written}
        write_json(manifest_of(self.folder, self.rank), {"files": own | self.sums})


@contextlib.contextmanager
def part_files(folder: Path, rank: int) -> Iterator[PartFiles]:
    """Yields the files of a worker; writes their manifest after the block."""
    files = PartFiles(folder, rank)
    yield files
    files.write_manifest()


def manifest_of(folder: Path, rank: int) -> Path:
    """Returns the path of the file with the checksums of the files of a worker."""
    return folder / f"worker{rank}.json"


def parts_of(folder: Path, rank: int) -> list[str]:
    """Returns the parts of the rows that a worker has saved: its own, and those of servers."""
    own = f"{rank}"
    names = (file.name.split("-")[1] for file in folder.glob(f"table*-worker{rank}.*-*.npy"))
    return [own, *sorted({name.removeprefix("worker") for name in names})]


def check_sums(folder: Path, rank: int) -> None:
    """Verifies the files of a worker against its manifest.

    Raises:
      OSError: if there is no manifest.
      ValueError: if a file is missing or damaged.
    """
    for name, (size, checksum) in read_json(manifest_of(folder, rank))["files"].items():
        file = folder / name
        if not file.exists():
            raise ValueError(f"no file {folder.name}/{name}")
        if file.stat().st_size != size:
            raise ValueError(
                f"{folder.name}/{name} of {file.stat().st_size} bytes, where {size} were written"
            )
        if npy_stream.checksum(file, like=checksum) != checksum:
            raise ValueError(f"{folder.name}/{name} with other bytes than were written")


def files_of_table(folder: Path, position: int, part: str) -> dict[str, Path]:
    """Returns the files of a part of a table's rows, by the name of the array."""
    prefix = path_of(folder, position, part, "").stem
    return {_key(file.name.removeprefix(prefix)): file for file in folder.glob(f"{prefix}*.npy")}


def path_of(folder: Path, position: int, part: str, key: str) -> Path:
    """Returns the path of an array's file.

    >>> path_of(Path("rows"), 0, "1", "slot/momentum").name
    'table0-worker1-slot.momentum.npy'
    """
    return folder / f"table{position}-worker{part}-{key.replace('/', '.')}.npy"


def _key(name: str) -> str:
    return name.removesuffix(".npy").replace(".", "/", 1)
