"""Periodic checkpoints from which training resumes bit for bit."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from strategies.callbacks.base import Callback, is_of_tf_keras
from strategies.collectives.workers import (
    are_in_step,
    barrier,
    collectives_of,
    drain,
    refresh,
)
from strategies.compat.keras import (
    begin_at,
    layers_of,
    optimizer_variables,
    optimizers_of,
    running_fit,
    tensorflow_variable,
)
from strategies.diagnostics.consistency import check_same_call, raise_on_all
from strategies.embedding.layer import EmbeddingLayer
from strategies.files.atomic_files import (
    all_writing,
    read_json,
    remove,
    sync_directory,
    write_json,
    write_npz,
)
from strategies.utils.argument_checks import check_whole_number
from strategies.variables.row_variable import RowVariable

_LATEST, _STATE, _ROWS = "latest.json", "state.npz", "rows{}"


class Checkpoint(Callback):
    """Saves the whole training state every `every_steps` steps, and resumes training from it.

    If the directory has a checkpoint when training begins, `fit` resumes after the checkpoint's
    step. It restores the weights, the variables of the optimizers, the random-number states and
    the embedding rows, and continues at the same position in the data. Together with

        $ tf-config run --workers 2 --max-restarts 3 train.py

    a job that was killed ends with the same bits as one that was not, provided that the script
    does the same on each run. Set the seeds (`keras.utils.set_random_seed`); otherwise the data
    are shuffled differently.

        keras.utils.set_random_seed(1)
        ...
        model.fit(dataset, epochs=3, callbacks=[
            strategies.callbacks.Checkpoint("checkpoints", every_steps=100)])

    The data before that step are read again without training on them; the metrics of that epoch
    cover only the steps after it. A checkpoint is either complete or absent: the previous one is
    kept until the next one is on disk. The last one is kept when training has ended, so another
    `fit` with the same directory has nothing left to do unless it has more epochs. Give each
    `fit` its own directory. The state of other callbacks is not restored. Requires Keras 3.

    With parameter servers in the modes "async", "half_async" and "geo", workers are not in step.
    They meet at the end of an epoch to save, and training resumes after that epoch; in "geo" with
    the first worker's copy of the variables. A worker that has fewer epochs, or stops early, waits
    at the end of `fit` until the others have finished training. A worker that is restarted alone
    would wait for the others in `fit`: restart all tasks.

    Args:
      directory: a directory that all workers can access.
      every_steps: the number of steps from one checkpoint to the next. With
        `steps_per_execution`, a checkpoint is saved at the next end of an execution. If Keras does
        not know the number of steps in an epoch, or workers are not in step, it is saved at the
        next end of an epoch.

    Raises:
      ValueError: if `every_steps` is not a positive integer; when training begins, if the
        checkpoint is damaged or belongs to another model, if the model is one of tf_keras, or if
        an optimizer other than that of `compile`, such as the second one of a GAN, is not built.
        No variable has been changed then.
      OSError: during training, if the worker cannot write a file; a `RuntimeError` on the others.
    """

    def __init__(self, directory: str | os.PathLike[str], *, every_steps: int):
        check_whole_number("every_steps", every_steps, 1)
        self._path = Path(directory)
        self._every_steps = every_steps
        self._step = self._saved_step = 0
        self._epoch = self._batch = 0
        self._to_skip = 0
        self._in_step = True

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Restores the checkpoint, if there is one, and skips the data before its step."""
        if is_of_tf_keras(self.model):
            raise ValueError(
                "strategies.callbacks.Checkpoint requires a model of Keras 3. Received: a model of "
                "tf_keras. Use tf_keras.callbacks.BackupAndRestore."
            )
        strategy = self.model.distribute_strategy
        self._in_step = are_in_step(strategy)
        if not self.model.optimizer.built:
            with strategy.scope():
                self.model.optimizer.build(self.model.trainable_variables)
        for optimizer in optimizers_of(self.model):
            if not optimizer.built:
                raise ValueError(
                    "All optimizers of a model must be built before fit, so that their state can "
                    f"be restored. Received: {optimizer.name!r}, which has no variables yet. Call "
                    "its build(...) with the variables that it trains, in the strategy's scope."
                )
        drain(strategy)  # an update of an earlier fit would change the restored values
        collectives = collectives_of(strategy)
        self._step = self._saved_step = self._to_skip = 0
        checkpoint, error = None, None
        try:
            checkpoint = self._read()
        except (OSError, ValueError, KeyError, TypeError) as raised:
            error = ValueError(
                "A checkpoint must be complete, and must be of the same model. Received: "
                f"{raised}, in {str(self._path)!r}. Use another directory, or the model that the "
                "checkpoint was saved from."
            )
        # All workers have read and checked everything before the first one sets a variable, so an
        # error on one of them leaves the variables of all unchanged.
        raise_on_all(collectives, "Restoring a checkpoint", error)
        step = None if checkpoint is None else checkpoint[0]["step"]
        text = "no checkpoint" if step is None else f"a checkpoint of step {step}"
        check_same_call(collectives, "Checkpoint", f"{text} in the directory")
        if checkpoint is not None:
            self._restore(*checkpoint)
        if not self._in_step:
            barrier(strategy)  # no worker trains before all have restored the same values

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Starts counting the batches of an epoch."""
        begin_at(self.model, 0)  # the restored epoch is for this `fit` only
        self._epoch, self._batch = epoch, 0

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Saves a checkpoint if one is due and the epoch is known to continue."""
        # Before a step, so that what other callbacks changed after the previous one is saved, too.
        if self._in_step and self._is_due() and (self.params or {}).get("steps"):
            self._save(self._epoch, batch)

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Counts the steps."""
        steps = batch + 1 - self._batch
        self._batch = batch + 1
        if self._to_skip:
            self._to_skip = max(self._to_skip - steps, 0)
        else:
            self._step += steps

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Saves a checkpoint if one is due."""
        is_due, _ = self._any_and_all(self._is_due(), has_ended=False)
        if is_due:
            self._save(epoch + 1, 0)

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Saves the final state; workers that are not in step wait until all have finished."""
        begin_at(self.model, 0)
        have_all_ended = False
        # Each turn is this worker's part in one exchange of a worker that still trains: that is in
        # its `on_epoch_end`, and saves with the others if a checkpoint is due.
        while not have_all_ended:
            is_new = self._step > self._saved_step
            is_due, have_all_ended = self._any_and_all(is_new, has_ended=True)
            if is_due:
                self._save(self._epoch + 1, 0)

    def _any_and_all(self, is_due: bool, has_ended: bool) -> tuple[bool, bool]:
        """Returns whether a checkpoint is due on any worker, and whether all have ended training.

        Workers that are not in step exchange this; one may have fewer epochs than the others.
        """
        if self._in_step:
            return is_due, has_ended
        # When all have met here, none trains on before it has saved, so the checkpoint has all of
        # their updates.
        drain(self.model.distribute_strategy)
        collectives = collectives_of(self.model.distribute_strategy)
        due, ended = collectives.all_gather(tf.constant([[is_due, has_ended]])).numpy().T
        return bool(due.any()), bool(ended.all())

    def _is_due(self) -> bool:
        return self._step - self._saved_step >= self._every_steps

    def _save(self, epoch: int, batch: int) -> None:
        collectives = collectives_of(self.model.distribute_strategy)
        if not self._in_step:
            refresh(self.model.distribute_strategy)
            # Workers may have taken different numbers of steps, but all write to one folder.
            steps = collectives.all_gather(tf.constant([self._step], tf.int64))
            self._step = int(tf.reduce_max(steps))
        folder = self._path / f"step-{self._step:09d}"
        first = collectives.rank == 0
        arrays = list(map(_value, self._variables()))
        with all_writing(collectives, "Checkpoints", str(self._path), folder):
            if first:
                remove(folder)  # left by a job that was killed while saving
                folder.mkdir(parents=True)
        for number, layer in enumerate(_embeddings(self.model)):
            layer.save_rows(str(folder / _ROWS.format(number)))
        with all_writing(collectives, "Checkpoints", str(self._path), folder):
            if first:
                _write_arrays(folder / _STATE, arrays)
                state = {"step": self._step, "epoch": epoch, "batch": batch}
                names = list(map(_name, self._variables()))
                values = {**state, "folder": folder.name, "variables": names, "checked": True}
                # Last: this makes the folder the newest checkpoint. See [Note: complete or absent]
                # in files/atomic_files.py.
                write_json(self._path / _LATEST, values)
        self._saved_step = self._step
        with all_writing(collectives, "Checkpoints", str(self._path)):
            if first:
                for other in self._path.glob("step-*"):
                    if other != folder:
                        remove(other)

    def _read(self) -> tuple[dict[str, Any], list[np.ndarray]] | None:
        """Returns the checkpoint after checking it against the model; None if there is none."""
        if not (self._path / _LATEST).exists():
            return None
        latest = read_json(self._path / _LATEST)
        names = list(map(_name, self._variables()))
        if latest.get("variables") != names:
            other = next(
                pair for pair in zip_longest(latest.get("variables", ()), names)
                 if pair[0] != pair[1]
            )  # fmt: skip
            raise ValueError(f"the variable {other[0]!r} where this model has {other[1]!r}")
        arrays = _read_arrays(self._path / latest["folder"] / _STATE)
        if len(arrays) != len(names):
            raise ValueError(f"{len(arrays)} variables, for {len(names)}")
        for name, array, variable in zip(names, arrays, self._variables(), strict=True):
            if array.shape != tuple(variable.shape):
                raise ValueError(f"{name} of shape {array.shape}, for {tuple(variable.shape)}")
        return latest, arrays

    def _restore(self, latest: Mapping[str, Any], arrays: list[np.ndarray]) -> None:
        # Rows first: all of them are checked before any is set, and the rest is checked already.
        for number, layer in enumerate(_embeddings(self.model)):
            layer.load_rows(str(self._path / latest["folder"] / _ROWS.format(number)))
        _assign(self._variables(), arrays)
        self._step = self._saved_step = latest["step"]
        self._to_skip = latest["batch"]
        logging.info("Training continues after step %d.", self._step)
        epochs, first_epoch = running_fit()
        begin_at(self.model, latest["epoch"])
        for _ in range(first_epoch, latest["epoch"]):
            with epochs.catch_stop_iteration():
                for _, _, iterator in epochs:
                    self._skip(iterator)
        self.model.train_function = self._skip_batches(self.model.train_function)

    def _skip(self, iterator: Any) -> None:
        for _ in range(self.model.steps_per_execution):
            next(iterator)

    def _skip_batches(self, train: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Returns a train function that skips the batches of earlier steps and runs the others."""

        def train_or_skip(iterator: Any) -> Any:
            if self._to_skip:
                self._skip(iterator)
                return {}
            self.model.train_function = train
            return train(iterator)

        return train_or_skip

    def _variables(self) -> list[Any]:
        """Returns the variables of the model and its optimizers, except embedding rows."""
        every = [*self.model.variables, *optimizer_variables(self.model)]
        unique = {id(each): each for each in every}
        return [
            each
            for each in unique.values()
            if not isinstance(tensorflow_variable(each), RowVariable)
        ]


def _embeddings(model: Any) -> list[EmbeddingLayer]:
    return [layer for layer in layers_of(model) if isinstance(layer, EmbeddingLayer)]


def _name(variable: Any) -> str:
    """Returns a variable's path without the numbers that Keras adds to make names unique."""
    return re.sub(r"_\d+", "", getattr(variable, "path", variable.name))


def _value(variable: Any) -> np.ndarray:
    return np.array(tensorflow_variable(variable).numpy())


def _assign(variables: list[Any], arrays: list[np.ndarray]) -> None:
    for variable, array in zip(variables, arrays, strict=True):
        inner = tensorflow_variable(variable)
        if array.dtype.kind == "V":  # bfloat16, which NumPy does not know
            array = array.view(inner.dtype.as_numpy_dtype)
        inner.assign(tf.constant(array))


def _read_arrays(path: Path) -> list[np.ndarray]:
    """Returns the arrays that `_write_arrays` wrote.

    Raises:
      ValueError: if the file is damaged.
    """
    try:
        with path.open("rb") as stream, np.load(stream) as file:
            return [file[str(number)] for number in range(len(file.files))]
    except Exception as error:  # from the zip file's checksums or from NumPy's headers
        raise ValueError(f"the file {path.name!r} ({error})") from None


def _write_arrays(path: Path, arrays: list[np.ndarray]) -> None:
    """Writes a .npz file, whose members have checksums, and flushes it to disk."""
    with path.open("wb") as file:
        write_npz(file, {str(number): array for number, array in enumerate(arrays)})
        file.flush()
        os.fsync(file.fileno())
    sync_directory(path.parent)
