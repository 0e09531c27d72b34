"""Deltas as folders: numbered, with checksums, and published as a whole.

The folder `000001` has what training changed between the export of a model and this delta, and
`000002` what it changed from then on. A folder contains, readable with NumPy alone:

* of each table and each worker that has a part of it, `table0-worker0-ids.npy` and `-rows.npy`, the
  changed rows, and `-removed.npy`, the ids to remove, or `-present_ids.npy`, all ids that are left;
* `variables.npz`, the values of all other weights: `variable0`, `variable1` and so on;
* `worker0.json`, a manifest with the sizes and checksums of the files of a worker;
* `delta.json`, which says what the folder is. The order of its tables is that of their numbers.

A folder is written under another name and renamed when it is complete; see [Note: complete or
absent] in files/atomic_files.py. Before anything of a folder is used, all of it is verified.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from strategies.embedding.checkpoint import npy_stream
from strategies.embedding.checkpoint.part_files import (
    check_sums,
    files_of_table,
    manifest_of,
)
from strategies.files.atomic_files import flush_to_disk, read_json, write_json, write_npz
from strategies.live.contents import (
    CHAIN,
    CONTENTS,
    IDS,
    NUMBER,
    PRESENT,
    REMOVED,
    RETAINS,
    ROWS,
    Contents,
    ServedRows,
    ServedVariable,
    table_input,
    variable_input,
)

_FORMAT = 1
_HEADER, _VARIABLES = "delta.json", "variables.npz"
# The file with the ids that are left.
_PRESENT_IDS = "present_ids"
_NAME = re.compile(r"\d{6,}")


class Delta(NamedTuple):
    """What a folder is.

    Attributes:
      chain: number of the export that the delta and those before it belong to.
      number: number of the delta, from 1; it follows the one before.
      contents: the tables and variables, as text.
    """

    chain: int
    number: int
    contents: str


def folder_name(number: int) -> str:
    """Returns the name of the folder of a delta.

    >>> folder_name(12)
    '000012'
    """
    return f"{number:06d}"


def unpublished(directory: Path, number: int) -> Path:
    """Returns the path of a delta's folder before it is published."""
    return directory / f".{folder_name(number)}"


def write_variables(folder: Path, values: Sequence[np.ndarray]) -> None:
    """Writes the values of the variables to a folder."""
    path = folder / _VARIABLES
    with path.open("wb") as file:
        # NumPy's format has no bfloat16 and would read it as bytes.
        arrays = {variable_input(n): _as_numpy(array) for n, array in enumerate(values)}
        write_npz(file, arrays)
    flush_to_disk(path)


def publish(folder: Path, delta: Delta, workers: int) -> Path:
    """Renames a folder that all workers have written to its name; returns the new path."""
    variables = folder / _VARIABLES
    manifests = [npy_stream.checksum(manifest_of(folder, rank)) for rank in range(workers)]
    values = {
        "format": _FORMAT,
        **delta._asdict(),
        "follows": delta.number - 1,
        "manifests": manifests,
        "files": {_VARIABLES: [variables.stat().st_size, npy_stream.checksum(variables)]},
    }
    write_json(folder / _HEADER, values)
    published = folder.with_name(folder_name(delta.number))
    folder.rename(published)
    flush_to_disk(published.parent)
    return published


def folders(directory: Path) -> list[tuple[int, Path]]:
    """Returns the numbers and paths of the published deltas in ascending order."""
    paths = directory.iterdir() if directory.exists() else ()
    return sorted((int(path.name), path) for path in paths if _NAME.fullmatch(path.name))


def newest(directory: Path) -> Delta | None:
    """Returns the last published delta of a directory; None if there is none.

    Raises:
      ValueError: if it is damaged.
    """
    published = folders(directory)
    if not published:
        return None
    header = _read_header(published[-1][1])
    return Delta(header[CHAIN], header[NUMBER], header[CONTENTS])


def read(folder: Path, delta: Delta) -> dict[str, np.ndarray]:
    """Returns the inputs of the signature "update" from a folder, after verifying all of it.

    Args:
      folder: the folder.
      delta: what the folder must be.

    Raises:
      ValueError: if it is another delta, or a file is missing or damaged.
    """
    header = _read_header(folder)
    _check_is(delta, header, folder)
    contents = Contents.from_text(delta.contents)
    workers = len(header["manifests"])
    try:
        for rank, checksum in enumerate(header["manifests"]):
            if npy_stream.checksum(manifest_of(folder, rank)) != checksum:
                raise ValueError(f"{manifest_of(folder, rank).name} with other bytes")
            check_sums(folder, rank)
        _check_variables(folder / _VARIABLES, *header["files"][_VARIABLES])
        inputs: dict[str, Any] = {CHAIN: np.int64(delta.chain), NUMBER: np.int64(delta.number)}
        for position, table in enumerate(contents.tables):
            parts = [files_of_table(folder, position, str(rank)) for rank in range(workers)]
            for key, array in _read_table(table, [each for each in parts if each]):
                inputs[table_input(position, key)] = array
        with np.load(folder / _VARIABLES) as file:
            for position, variable in enumerate(contents.variables):
                inputs[variable_input(position)] = _read_variable(
                    variable, file[variable_input(position)]
                )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(_damaged(folder, error)) from error
    return inputs


def _check_is(delta: Delta, header: Mapping[str, Any], folder: Path) -> None:
    if header[CHAIN] != delta.chain:
        raise ValueError(
            "A delta must be of the same export as the SavedModel. Received: "
            f"{str(folder)!r}, of another export. Nothing of it was applied. Load the SavedModel "
            "that was exported last, and keep the deltas of each export in a directory of their "
            "own."
        )
    if header[NUMBER] != delta.number:
        raise ValueError(
            f"The folder {folder.name!r} must contain the delta of this number. Received: number "
            f"{header[NUMBER]}, in {str(folder)!r}. Nothing of it was applied. Restore the folder "
            "that strategies.export_delta wrote."
        )
    if header[CONTENTS] != delta.contents:
        raise ValueError(
            "A delta must have the tables and variables of the SavedModel. Received: "
            f"{header[CONTENTS]} in {str(folder)!r}, for {delta.contents}. Nothing of it was "
            "applied. Export the model again with strategies.export."
        )


def _read_header(folder: Path) -> dict[str, Any]:
    try:
        header = read_json(folder / _HEADER)
        if header["format"] != _FORMAT:
            raise ValueError(f"format {header['format']}, where this version reads {_FORMAT}")
        missing = {CHAIN, NUMBER, CONTENTS, "manifests", "files"} - set(header)
        if missing:
            raise ValueError(f"the file {_HEADER!r} without {', '.join(sorted(missing))}")
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(_damaged(folder, error)) from None
    return header


def _check_variables(path: Path, size: int, checksum: int) -> None:
    if path.stat().st_size != size or npy_stream.checksum(path) != checksum:
        raise ValueError(f"{path.name} with other bytes than were written")


def _read_table(
    table: ServedRows, parts: Sequence[Mapping[str, Path]]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the arrays of a table from the files of all workers, by the keys of its inputs."""
    nothing = np.zeros([0], np.int64)
    retains = any(_PRESENT_IDS in part for part in parts)
    specs: dict[str, tuple[type, tuple[int | None, ...]]] = {
        IDS: (np.int64, (None,)),
        ROWS: (np.float32, (None, table.width)),
        _PRESENT_IDS if retains else REMOVED: (np.int64, (None,)),
    }
    arrays: dict[str, list[np.ndarray]] = {key: [] for key in specs}
    for part in parts:
        for key, spec in specs.items():
            npy_stream.check(part[key], *spec)
            arrays[key].append(npy_stream.load(part[key]))
    joined = {key: np.concatenate(each) for key, each in arrays.items()}
    if len(joined[IDS]) != len(joined[ROWS]):
        raise ValueError(f"{len(joined[IDS])} ids with {len(joined[ROWS])} rows")
    yield IDS, joined[IDS]
    yield ROWS, joined[ROWS]
    yield REMOVED, nothing if retains else joined[REMOVED]
    yield PRESENT, joined[_PRESENT_IDS] if retains else nothing
    yield RETAINS, np.array(retains)


def _as_numpy(array: np.ndarray) -> np.ndarray:
    """Returns an array, or its bits as integers if NumPy itself does not have its dtype."""
    return array.view(f"u{array.itemsize}") if array.dtype.kind == "V" else array


def _read_variable(variable: ServedVariable, array: np.ndarray) -> np.ndarray:
    dtype = variable.numpy_dtype
    array = array.view(dtype) if dtype.kind == "V" else array
    shape = variable.shape
    fits = len(shape) == array.ndim and all(
        size in (None, given) for size, given in zip(shape, array.shape, strict=True)
    )
    if array.dtype != dtype or not fits:
        raise ValueError(f"{variable.name} of {array.dtype} and shape {array.shape}")
    return array


def _damaged(folder: Path, received: object) -> str:
    return (
        "The files of a delta must be complete and unchanged. Received: "
        f"{received}, in {str(folder)!r}. Nothing of it was applied. Restore the folder from where "
        "it was copied, or export the model again with strategies.export."
    )
