"""The files of a checkpoint of `Checkpoint`, and how all workers write them.

A checkpoint is a folder with

* `state-0.npz`, `state-1.npz` and so on, one for each worker: the variables but for embedding rows,
  each in the file of one worker, under the number that it has in the list of variables;
* `rows0`, `rows1` and so on: the rows of each embedding layer, as its `save_rows` writes them;
* `data-0.index`, `data-0.data-...`, `data-1.index` and so on: the position of each worker's
  iterator in its data, if TensorFlow can save it.

`latest.json` beside it names the folder and the variables; see [Note: complete or absent] in
files/atomic_files.py. Version 0.1.0 wrote all variables to one file, `state.npz`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from strategies.collectives import Collectives
from strategies.compat.keras import (
    layers_of,
    optimizer_variables,
    tensorflow_variable,
    variables_of,
)
from strategies.compat.tensorflow import MirroredVariable, ResourceVariable
from strategies.data import iterator_position
from strategies.data.iterator_position import (
    IteratorPosition,
    files_of_position,
    restore_position,
    write_position,
)
from strategies.diagnostics.consistency import raise_on_all
from strategies.embedding.checkpoint.background_save import BackgroundSave
from strategies.embedding.layer import EmbeddingLayer
from strategies.embedding.tables import Tables
from strategies.files.atomic_files import (
    all_writing,
    flush_to_disk,
    read_json,
    remove,
    write_json,
    write_npz,
)
from strategies.utils.background_thread import BackgroundTask
from strategies.utils.devices import HOST
from strategies.utils.memory import available_memory
from strategies.variables.row_variable import RowVariable

_LATEST, _UNFINISHED, _ROWS, _STATE = "latest.json", "unfinished", "rows{}", "state-{}.npz"
_STATE_OF_ALL = "state.npz"  # of version 0.1.0
_DATA = "data-{}"
# With it, the threads that write take a tenth of a processor that training would use.
_NICENESS = 10
# Of the memory that is available, the part that a copy of the state may take.
_SHARE_OF_MEMORY = 4


class CheckpointSave:
    """One checkpoint that all workers write, together, stage by stage.

    1. All rows are written, while training goes on; left out if there are none.
    2. `cut`, between two steps: the rows that have changed since and the other variables' values
       are taken. The checkpoint is of this step. They are written while training goes on.
    3. `publish`, when all workers have written: the new checkpoint takes the place of the last one,
       whose files are removed. Training goes on meanwhile.

    All workers create it between the same two steps, and call its methods between the same two
    later steps.

    Args:
      path: the directory of the checkpoints.
      model: the model.
      collectives: the workers.
      background: whether training goes on meanwhile. If not, no copy of the state is made, and the
        caller waits for each stage.
      is_divided: whether all workers have the same variables, so that each can write a part of
        them. If not, the first one writes its own.

    Attributes:
      is_cut: whether the checkpoint has a step.
      is_published: whether it is the newest checkpoint, as of the last `finish_stage`.
      position_bytes: the size of the position in the data, once it is written.
    """

    def __init__(
        self,
        path: Path,
        model: Any,
        collectives: Collectives,
        background: bool,
        is_divided: bool,
    ):
        self.is_cut = self.is_published = self._is_publishing = False
        self.position_bytes = 0
        self._path = path
        self._folder = path / _UNFINISHED
        self._model = model
        self._collectives = collectives
        self._background = background
        self._is_divided = is_divided
        self._latest: dict[str, Any] = {}
        self._position: list[tf.Tensor] | None = None
        self._data = ""
        self._task: BackgroundTask | None = None
        self._rows: list[BackgroundSave] = []
        with self._all_writing():
            if collectives.rank == 0:
                remove(self._folder)  # left by a job that was killed while saving
                self._folder.mkdir(parents=True)
        self._tables = _tables_of(model)
        if background:
            for number, each in enumerate(self._tables):
                self._rows.append(each.begin_save(self._rows_of(number)))
        if self._rows:
            self._task = self._begin(self._write_rows)

    def _begin(self, function: Callable[[Callable[[], None]], object]) -> BackgroundTask:
        niceness = _NICENESS if self._background else 0
        return BackgroundTask(function, "checkpoint", niceness)

    def _rows_of(self, number: int) -> str:
        return str(self._folder / _ROWS.format(number))

    def _all_writing(self, folder: Path | None = None) -> Any:
        return all_writing(self._collectives, "Checkpoints", str(self._path), folder)

    @property
    def has_rows(self) -> bool:
        """Whether rows are written before the cut."""
        return bool(self._rows)

    @property
    def is_ready(self) -> bool:
        """Whether this worker is ready for the next stage."""
        return self._task is None or self._task.is_done

    def finish_stage(self) -> None:
        """Waits until all workers are ready for the next stage.

        Raises:
          OSError: if this worker cannot write a file.
          RuntimeError: if another worker cannot.
        """
        error = None
        if self._task is not None:
            self._task.wait()
            error = self._task.error
        with self._all_writing(self._folder):
            if isinstance(error, OSError):
                raise error
        raise_on_all(self._collectives, "Saving a checkpoint", error)
        self.is_published = self._is_publishing

    def stop(self) -> None:
        """Ends this worker's writing, for a checkpoint that is given up."""
        if self._task is not None:
            self._task.stop()

    def _write_rows(self, check: Callable[[], None]) -> None:
        for rows in self._rows:
            rows.write_first(check)

    def cut(
        self,
        step: int,
        epoch: int,
        batch: int,
        position: list[tf.Tensor] | None,
        data: Mapping[str, Any],
    ) -> None:
        """Takes the state of the present step.

        Args:
          step: the number of the step.
          epoch: the epoch in which training resumes.
          batch: the batch of the epoch.
          position: the position of this worker in the data; None if it has none.
          data: a description of this worker's data, for JSON.
        """
        self.is_cut = True
        variables = variables_of_checkpoint(self._model)
        self._data = json.dumps(dict(data))
        self._position = position if _all(self._collectives, position is not None) else None
        self._latest = {
            "step": step,
            "epoch": epoch,
            "batch": batch,
            "positions": 0 if self._position is None else self._collectives.size,
            "folder": f"step-{step:09d}",
            "variables": list(map(_name, variables)),
            "parts": self._collectives.size if self._is_divided else 1,
            "checked": True,
        }
        for number, tables in enumerate(self._tables):
            if self._background:
                tables.cut(self._rows[number], available_memory() // _SHARE_OF_MEMORY)
            else:
                tables.save(self._rows_of(number), delta=False)
        own = self._own_values(variables)
        size = sum(value.shape.num_elements() * value.dtype.size for value in own.values())
        memory = available_memory() // _SHARE_OF_MEMORY
        goes_on = self._background and size <= memory
        if self._background and not goes_on:
            logging.warning(
                "A checkpoint is written while training waits, because a copy of the variables "
                "takes %d MiB, and of the memory that is available %d MiB may be used for it.",
                size >> 20, memory >> 20,
            )  # fmt: skip
        self._task = self._begin(lambda _: self._write(own))
        if not goes_on:
            # No exchange here: the other workers may have the memory. `finish_stage` raises errors.
            self._task.wait()

    def _write(self, own: Mapping[int, tf.Tensor]) -> None:
        for rows in self._rows:
            rows.write_rest()
        if self._is_divided or self._collectives.rank == 0:
            _write_arrays(self._folder / _STATE.format(self._collectives.rank), own)
        if self._position is not None:
            prefix = self._folder / _DATA.format(self._collectives.rank)
            files = write_position(prefix, self._position, self._data)
            self._position = None  # frees what the iterator had read ahead
            for file in files:
                flush_to_disk(file)
            self.position_bytes = sum(file.stat().st_size for file in files)

    def _own_values(self, variables: Sequence[Any]) -> dict[int, tf.Tensor]:
        """Returns the values of the variables that this worker writes, by number, in host memory.

        A value keeps the memory of its variable: TensorFlow does not write to a variable that
        shares its memory, but gives it new memory. So a value is copied by the next update of its
        variable, if that updates in place at all, and not here, while all workers wait. From a GPU,
        it is copied to the host here.
        """
        # Any other variable may differ between workers, such as a counter of a custom layer.
        same = {id(each) for each in variables_of(self._model, "trainable_variables")}
        same |= {id(each) for each in optimizer_variables(self._model)}
        sizes = [0] * self._collectives.size
        own = {}
        for number, variable in enumerate(variables):
            inner = tensorflow_variable(variable)
            is_same = self._is_divided and id(variable) in same
            rank = sizes.index(min(sizes)) if is_same else 0
            # By the shape: reading a variable to learn its size would copy it from a GPU.
            sizes[rank] += (inner.shape.num_elements() or 0) * inner.dtype.size
            is_own = rank == self._collectives.rank
            if not is_own and isinstance(inner, (ResourceVariable, MirroredVariable)):
                continue
            # Others, such as metrics and sharded optimizer state, are read by all workers together.
            value = inner.read_value()
            if is_own:
                with tf.device(HOST):
                    own[number] = tf.identity(value)
        return own

    def publish(self) -> None:
        """Makes this the newest checkpoint, and removes the last one."""
        self._is_publishing = True
        # In the thread as well: a disk that is busy takes a tenth of a second for each flush, and a
        # file system a second to free the files of many rows.
        self._task = self._begin(lambda _: self._publish())

    def _publish(self) -> None:
        if self._collectives.rank != 0:
            return
        folder = self._path / self._latest["folder"]
        for rows in self._rows:
            rows.publish()
        flush_to_disk(self._folder)
        remove(folder)
        self._folder.rename(folder)
        # This makes the folder the newest checkpoint.
        write_json(self._path / _LATEST, self._latest)
        for other in self._path.glob("step-*"):
            if other != folder:
                remove(other)


def read(path: Path, model: Any) -> tuple[dict[str, Any], list[np.ndarray]] | None:
    """Returns a checkpoint after checking it against the model; None if there is none.

    Raises:
      OSError: if a file cannot be read.
      ValueError, KeyError, TypeError: if a file is damaged or of another model.
    """
    if not (path / _LATEST).exists():
        return None
    latest = read_json(path / _LATEST)
    variables = variables_of_checkpoint(model)
    names = list(map(_name, variables))
    if latest.get("variables") != names:
        other = next(
            pair for pair in zip_longest(latest.get("variables", ()), names) if pair[0] != pair[1]
        )
        raise ValueError(f"the variable {other[0]!r} where this model has {other[1]!r}")
    parts = latest.get("parts")
    files = [_STATE_OF_ALL] if parts is None else [_STATE.format(rank) for rank in range(parts)]
    arrays: dict[str, np.ndarray] = {}
    for file in files:
        arrays |= _read_arrays(path / latest["folder"] / file)
    if set(arrays) != set(map(str, range(len(names)))):
        raise ValueError(f"{len(arrays)} variables, for {len(names)}")
    in_order = [arrays[str(number)] for number in range(len(names))]
    for name, array, variable in zip(names, in_order, variables, strict=True):
        if array.shape != tuple(variable.shape):
            raise ValueError(f"{name} of shape {array.shape}, for {tuple(variable.shape)}")
    return latest, in_order


def restore(path: Path, model: Any, latest: Mapping[str, Any], arrays: list[np.ndarray]) -> None:
    """Sets the rows and the variables of a model to those that `read` returned."""
    # Rows first: all of them are checked before any is set, and the rest is checked already.
    for number, tables in enumerate(_tables_of(model)):
        tables.load(str(path / latest["folder"] / _ROWS.format(number)))
    for variable, array in zip(variables_of_checkpoint(model), arrays, strict=True):
        inner = tensorflow_variable(variable)
        if array.dtype.kind == "V":  # bfloat16, which NumPy does not know
            array = array.view(inner.dtype.as_numpy_dtype)
        inner.assign(tf.constant(array))


def has_position(path: Path, latest: Mapping[str, Any], collectives: Collectives) -> bool:
    """Returns whether a checkpoint has the positions of all workers in their data.

    All workers must call it. A checkpoint of another number of workers has none for these.
    """
    is_there = latest.get("positions") == collectives.size
    return _all(
        collectives, is_there and bool(files_of_position(_prefix(path, latest, collectives.rank)))
    )


def read_data(path: Path, latest: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """Returns the description of the data of a worker, whose number of steps may be its own.

    Raises:
      ValueError: if a file is damaged.
    """
    return json.loads(iterator_position.read_data(_prefix(path, latest, rank)))


def restore_data(
    path: Path, latest: Mapping[str, Any], rank: int, iterator: Any
) -> IteratorPosition:
    """Moves an iterator to the position in the data that a worker had.

    Raises:
      ValueError: if a file is damaged or of other data.
    """
    return restore_position(iterator, _prefix(path, latest, rank))


def _prefix(path: Path, latest: Mapping[str, Any], rank: int) -> Path:
    return path / latest["folder"] / _DATA.format(rank)


def _all(collectives: Collectives, value: bool) -> bool:
    """Returns whether a value is true on all workers."""
    return bool(tf.reduce_all(collectives.all_gather(tf.constant([value]))))


def variables_of_checkpoint(model: Any) -> list[Any]:
    """Returns the variables of a model and its optimizers, except embedding rows."""
    every = [*model.variables, *optimizer_variables(model)]
    unique = {id(each): each for each in every}
    return [
        each for each in unique.values() if not isinstance(tensorflow_variable(each), RowVariable)
    ]


def _tables_of(model: Any) -> list[Tables]:
    """Returns the tables of each distributed embedding layer that the model calls."""
    layers = [layer for layer in layers_of(model) if isinstance(layer, EmbeddingLayer)]
    return [layer.tables for layer in layers if layer.tables is not None]


def _name(variable: Any) -> str:
    """Returns a variable's path without the numbers that Keras adds to make names unique."""
    return re.sub(r"_\d+", "", getattr(variable, "path", variable.name))


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Returns the arrays that `_write_arrays` wrote.

    Raises:
      ValueError: if the file is damaged.
    """
    try:
        with path.open("rb") as stream, np.load(stream) as file:
            return {name: file[name] for name in file.files}
    except Exception as error:  # from the zip file's checksums or from NumPy's headers
        raise ValueError(f"the file {path.name!r} ({error})") from None


def _write_arrays(path: Path, arrays: Mapping[int, tf.Tensor]) -> None:
    """Writes a .npz file, whose members have checksums, and flushes it to disk."""
    with path.open("wb") as file:
        write_npz(file, {str(number): array for number, array in arrays.items()})
        file.flush()
        os.fsync(file.fileno())
    flush_to_disk(path.parent)
