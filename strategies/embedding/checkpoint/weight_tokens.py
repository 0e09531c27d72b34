"""Tokens that stand for rows in `model.get_weights`, and in-memory snapshots of these rows.

[Note: tokens]
Keras's `EarlyStopping(restore_best_weights=True)`, `get_weights` and `set_weights` move a weight as
one array of its shape, but the rows of a table have no fixed shape. So the array of a table's
weight is a token: one row of numbers close to zero, unique to a snapshot. The rows stay in this
process as long as the array does, and are restored when the array is assigned to a table. The
number of a snapshot is the seed of its token's numbers.

Each worker keeps its own part of the rows without communication. With parameter servers, a worker
keeps the rows of all servers, since any worker may set the variables there.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from strategies.collectives.single_worker import in_single_worker_scope
from strategies.embedding.checkpoint.array_specs import OVERFLOW
from strategies.embedding.checkpoint.snapshot import (
    Arrays,
    concatenate_arrays,
    extra_arrays,
    restore_extra,
    restore_rows,
    retain,
    row_chunks,
)
from strategies.embedding.shard.table import Table
from strategies.embedding.shard.table_shard import TableShard

# Limit for a group of tables on one worker.
MAX_SNAPSHOT_BYTES = 1 << 32
_KEPT = ("rows", "times", "touches")
_SAVED = (
    "The rows are saved by model.save_weights('x.weights.h5'), model.save('x.keras'), "
    "ModelCheckpoint to such a path, tf.train.Checkpoint and the layer's save_rows"
)

_taken: weakref.WeakValueDictionary[bytes, Snapshot] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Snapshot of the rows of a group of tables.

    Attributes:
      tables: arrays of each table, by their names in `array_specs`.
      part: index of the part and number of parts; (0, 1) is all rows.
    """

    tables: Sequence[Mapping[str, np.ndarray]]
    part: tuple[int, int]


_COMPARISONS = (np.equal, np.not_equal, np.isfinite, np.isnan, np.isinf)
_WRITERS = (np.save, np.savez, np.savez_compressed, np.savetxt)


def _refuse(received: str) -> NoReturn:
    raise ValueError(
        "The array that get_weights returns for an embedding can only be passed to set_weights, "
        f"because it stands for rows kept by this process. Received: {received}. {_SAVED}; the "
        "layer's rows() returns ids and rows as arrays."
    )


class Token(np.ndarray):
    """Array of one row, float32 [1, width], that stands for a snapshot and keeps it alive."""

    snapshot: Snapshot | None = None

    def __array_finalize__(self, other: Any) -> None:
        """Keeps the snapshot alive in copies and views as well."""
        self.snapshot = getattr(other, "snapshot", None)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """Compares tokens; other arithmetic would be on numbers that mean nothing.

        Raises:
          ValueError: if the function is not a comparison.
        """
        if ufunc not in _COMPARISONS:
            _refuse(f"{ufunc.__name__} of it")
        arrays = [np.asarray(each) for each in inputs]
        return getattr(ufunc, method)(*arrays, **kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Calls a function of NumPy, unless it writes a file, which would lack the rows.

        Raises:
          ValueError: if it does.
        """
        if func in _WRITERS:
            _refuse(f"numpy.{func.__name__}")
        return super().__array_function__(func, types, args, kwargs)

    def __reduce__(self) -> NoReturn:
        """Prevents pickling, which would lose the rows.

        Raises:
          ValueError: always.
        """
        _refuse("an attempt to pickle it")


class Snapshots:
    """Takes and restores snapshots of a group of tables.

    Args:
      shards: shards of the tables that this worker can access.
      names: names of the tables.
      part: index of the part of the rows in the shards, and number of parts.
      is_of_workers: whether several workers restore the rows together.
      on_restored: function that is called after rows were restored.
    """

    def __init__(
        self,
        shards: Sequence[TableShard],
        names: Sequence[str],
        part: tuple[int, int],
        is_of_workers: bool,
        on_restored: Callable[[], None],
    ):
        self._shards = shards
        self._names = names
        self._width = shards[0].tables[names[0]].config.output_dim
        self._part = part
        self._is_of_workers = is_of_workers
        self._on_restored = on_restored

    def take(self) -> np.ndarray:
        """Takes a snapshot of the rows; returns its token.

        Raises:
          ValueError: if the snapshot would exceed `MAX_SNAPSHOT_BYTES`.
        """
        self._check_size()
        self._shards[0].drain()
        snapshot = Snapshot([self._arrays(name) for name in self._names], self._part)
        row = _row(next(_numbers), self._width)
        _taken[row.tobytes()] = snapshot
        token = row.view(Token)
        token.snapshot = snapshot
        return token

    def restore(self, value: np.ndarray) -> None:
        """Restores the rows from the snapshot of a token; slot variables are unchanged.

        Rows created after the snapshot are removed.

        Raises:
          ValueError: if the value is not a token of this process, or belongs to other tables or
            another worker's rows, or only one of several workers calls it.
        """
        snapshot = _taken.get(np.ascontiguousarray(value, np.float32).tobytes())
        self._check(snapshot)
        self._shards[0].drain()
        for name, arrays in zip(self._names, snapshot.tables, strict=True):  # type: ignore[union-attr]
            for shard in self._shards:
                retain(shard, name, arrays["ids"])
                restore_rows(shard, name, {key: arrays[key] for key in ("ids", *_KEPT)})
                restore_extra(shard, name, arrays)
        self._on_restored()

    def _arrays(self, name: str) -> Arrays:
        chunks = [
            chunk.arrays(only=_KEPT) for chunk in row_chunks(self._shards, name, of_all_owners=True)
        ]
        extra = extra_arrays(self._shards, name)
        shared = {f"{OVERFLOW}{key}" for key in _KEPT} & set(extra)
        return {**concatenate_arrays(chunks), **{key: extra[key] for key in shared}}

    def _check_size(self) -> None:
        size = 0
        for shard in self._shards:
            for name in self._names:
                rows = int(shard.call_on_table(name, Table.size, idempotent=True))
                size += rows * (4 * self._width + 16)
        if size > MAX_SNAPSHOT_BYTES:
            raise ValueError(
                f"get_weights cannot keep more than {MAX_SNAPSHOT_BYTES} bytes of embedding rows "
                f"in a worker's memory. Received: {size} bytes in "
                f"{', '.join(map(repr, self._names))}. {_SAVED}; instead of "
                "EarlyStopping(restore_best_weights=True) use ModelCheckpoint('best.weights.h5', "
                "save_weights_only=True, save_best_only=True) and load_weights."
            )

    def _check(self, snapshot: Snapshot | None) -> None:
        if snapshot is None or len(snapshot.tables) != len(self._names):
            received = "other values" if snapshot is None else "a snapshot of other tables"
            raise ValueError(
                "The weight of an embedding can only be set to an array that get_weights returned "
                f"in this process and that is still referenced. Received: {received} for "
                f"{', '.join(map(repr, self._names))}. Set rows with the layer's set_rows. "
                f"{_SAVED}."
            )
        if snapshot.part not in (self._part, (0, 1)):
            raise ValueError(
                "set_weights must be called on the worker whose get_weights returned the array. "
                f"Received: part {snapshot.part[0]} of {snapshot.part[1]}, on the worker of part "
                f"{self._part[0]} of {self._part[1]}. Save and load the weights. {_SAVED}."
            )
        if self._is_of_workers and in_single_worker_scope():
            raise ValueError(
                "All workers must call set_weights, because each sets its part of an embedding's "
                "rows. Received: a callback that runs on the first worker only. Pass it to fit "
                "without on_first_worker."
            )


def _row(number: int, width: int) -> np.ndarray:
    """Returns the row of a token, float32 [1, width]: values close to 0 that rows never take.

    >>> bool((_row(1, 2) != _row(2, 2)).any()), float(abs(_row(1, 2)).max()) < 1e-29
    (True, True)
    """
    mantissas = np.random.default_rng(number).integers(1 << 23, size=[1, width])
    return ((1 + mantissas / 2**23) * 2.0**-100).astype(np.float32)
