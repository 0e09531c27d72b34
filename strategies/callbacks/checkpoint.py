"""Periodic checkpoints from which training resumes bit for bit."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from strategies.callbacks import checkpoint_files
from strategies.callbacks.base import Callback, is_of_tf_keras
from strategies.callbacks.checkpoint_files import CheckpointSave
from strategies.collectives import Collectives
from strategies.collectives.workers import (
    are_in_step,
    barrier,
    collectives_of,
    drain,
    is_joining,
    refresh,
)
from strategies.compat.keras import (
    begin_at,
    optimizers_of,
    running_fit,
)
from strategies.data.iterator_position import IteratorPosition
from strategies.diagnostics.consistency import check_same_call, raise_on_all, spec_text
from strategies.diagnostics.metrics import add_source
from strategies.utils.argument_checks import check_whole_number
from strategies.utils.delayed_termination import DelayedTermination
from tf_config.launcher.metrics import CHECKPOINT_TIME
from tf_config.launcher.progress_file import Sample
from tf_config.worker_range import WorkerRange

# How long a checkpoint that is being written may delay SIGTERM. Slurm and Kubernetes kill a process
# 30 seconds after the signal.
_TERMINATION_SECONDS = 25.0
# About how often workers ask one another whether they have written their parts of a checkpoint.
_POLL_SECONDS = 0.1
# The largest position in the data that is written again with each checkpoint.
_POSITION_BYTES = 256 << 20


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

    The metrics of the epoch in which `fit` resumes cover only the steps after that one. A `tf.data`
    pipeline, such as that of `read_files`, continues where it was: its position is part of a
    checkpoint, together with what it has read ahead, such as its shuffle buffer. Of the following,
    the data before that step are read again, from the first epoch, without training on them:

    * generators, `PyDataset`, and arrays that Keras shuffles;
    * pipelines with `cache()`, with a function that uses another dataset, or with operations that
      have a state, such as `tf.py_function` and `tf.random.uniform` (but not
      `tf.random.stateless_uniform`);
    * data of unknown length on several workers, which ask one another in each step whether they
      have more;
    * pipelines that have read ahead more than 256 MiB;
    * data of a job that is resumed with another number of workers.

    A checkpoint is either complete or absent: the previous one is
    kept until the next one is on disk. The last one is kept when training has ended, so another
    `fit` with the same directory has nothing left to do unless it has more epochs. Give each
    `fit` its own directory. The state of other callbacks is not restored. Requires Keras 3.

    If workers train in step, training goes on while a checkpoint is written. It waits only for a
    copy of the variables, of which each worker takes a part, and of the embedding rows that were
    trained on since the writing began; the other rows are written before that, a few megabytes at
    a time. So a checkpoint with rows may be of a later step than the one in which it was due. If a
    copy would take more than a quarter of the available memory, training waits until it is written;
    it also waits if the next checkpoint is due before the previous one is complete. If writing
    fails, the error is raised in one of the next steps, or at the end of `fit`. SIGTERM, with
    which schedulers end a job, is delayed until the checkpoint is complete, but not by more than 25
    seconds, and not if the program handles the signal itself.

    With parameter servers in the modes "async", "half_async" and "geo", workers are not in step.
    They meet at the end of an epoch to save, and train again when the checkpoint is complete.
    Training resumes after that epoch; in "geo" with the first worker's copy of the variables. A
    worker that has fewer epochs, or stops early, waits at the end of `fit` until the others have
    finished training. A worker that is restarted alone would wait for the others in `fit`: restart
    all tasks.

    Args:
      directory: a directory that all workers can access.
      every_steps: the number of steps from one checkpoint to the next. With
        `steps_per_execution`, a checkpoint is saved at the next end of an execution. If workers are
        not in step, it is saved at the next end of an epoch.
      background: whether training goes on while a checkpoint is written. None, the default, is True
        if workers train in step.

    Raises:
      ValueError: if an argument is invalid; when training begins, if `background` is true and
        workers are not in step, if the checkpoint is damaged or belongs to another model, if the
        model is one of tf_keras or has no variables yet, or if an optimizer other than that of
        `compile`, such as the second one of a GAN, is not built. No variable has been changed then.
      OSError: during training, if the worker cannot write a file; a `RuntimeError` on the others.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        every_steps: int,
        background: bool | None = None,
    ):
        check_whole_number("every_steps", every_steps, 1)
        if background not in (None, True, False):
            raise ValueError(
                f"background must be True, False or None. Received: {background!r}. Omit it to "
                "write while training goes on, if workers train in step."
            )
        self._path = Path(directory)
        self._every_steps = every_steps
        self._background = background
        self._in_background = False
        self._saving: CheckpointSave | None = None
        self._poll: Any = None
        self._termination: Any = None
        # The steps in which the last checkpoint was begun and of which it is.
        self._step = self._begun_step = self._saved_step = 0
        self._epoch = self._batch = 0
        self._to_skip = 0
        self._position: IteratorPosition | None = None
        self._position_bytes = 0
        self._in_step = True
        self._save_begin = 0.0
        self._last_save: tuple[float, float] | None = None  # when it was complete, and its duration

    def _samples(self) -> Iterator[Sample]:
        """Returns when the last checkpoint was complete, and its duration."""
        if self._last_save is not None:
            names, labels = (CHECKPOINT_TIME, "checkpoint_duration_seconds"), (str(self._path),)
            for name, value in zip(names, self._last_save, strict=True):
                yield Sample(name, value, labels)

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Restores the checkpoint, if there is one, and skips the data before its step."""
        if is_of_tf_keras(self.model):
            raise ValueError(
                "strategies.callbacks.Checkpoint requires a model of Keras 3. Received: a model of "
                "tf_keras. Use tf_keras.callbacks.BackupAndRestore."
            )
        add_source(self, Checkpoint._samples)
        strategy = self.model.distribute_strategy
        self._in_step = are_in_step(strategy)
        if self._background and not self._in_step:
            raise ValueError(
                "background=True requires workers that train in step, because a checkpoint is of "
                "one step of all workers. Received: parameter servers in a mode other than 'sync'. "
                "Leave out background; the workers wait while a checkpoint is written."
            )
        self._in_background = self._in_step and self._background is not False
        if self._saving is not None:  # of a `fit` that ended by an error
            self._saving.stop()
            self._termination.release()
            self._saving = None
        if not self.model.weights:
            # Without a strategy, Keras makes the variables of a subclassed model in the first step.
            raise ValueError(
                "A model must have its variables before fit, so that a checkpoint can restore "
                f"them. Received: {self.model.name!r}, which has none yet. Call it once, such as "
                "model(x[:1]), or create and compile it in a strategy's scope."
            )
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
        self._step = self._saved_step = self._begun_step = self._to_skip = 0
        self._position, self._position_bytes = None, 0
        if is_joining(strategy):
            return  # the others have restored it, and the servers have newer values since
        checkpoint, error = None, None
        try:
            checkpoint = checkpoint_files.read(self._path, self.model)
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
            has_position = self._has_position(checkpoint[0])
            self._restore(*checkpoint)
            self._resume(checkpoint[0], has_position)
        if not self._in_step:
            barrier(strategy)  # no worker trains before all have restored the same values

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Starts counting the batches of an epoch."""
        begin_at(self.model, 0)  # the restored epoch is for this `fit` only
        self._epoch, self._batch = epoch, 0

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Saves a checkpoint if one is due."""
        # TensorFlow cannot save the position in data that are divided anew in each epoch.
        is_first = not batch and not self._to_skip and WorkerRange.from_env() is None
        if self._position is None and is_first:
            self._position = IteratorPosition.begin(running_fit().iterator)
        # Before a step, so that what other callbacks changed after the previous one is saved, too.
        self._advance(self._epoch, batch)
        # If the length of the data is unknown, there may be no such batch. Then a resumed epoch
        # ends at once.
        if self._in_step and self._is_due():
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
        if is_joining(self.model.distribute_strategy):
            return  # the others do not meet this worker yet
        self._advance(epoch + 1, 0)
        is_due, _ = self._any_and_all(self._is_due(), has_ended=False)
        if is_due:
            self._save(epoch + 1, 0)

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Saves the final state; workers that are not in step wait until all have finished."""
        begin_at(self.model, 0)
        self._advance(self._epoch + 1, 0, wait=True)
        have_all_ended = is_joining(self.model.distribute_strategy)
        # Each turn is this worker's part in one exchange of a worker that still trains: that is in
        # its `on_epoch_end`, and saves with the others if a checkpoint is due.
        while not have_all_ended:
            is_new = self._step > self._saved_step
            is_due, have_all_ended = self._any_and_all(is_new, has_ended=True)
            if is_due:
                self._save(self._epoch + 1, 0)
                self._advance(self._epoch + 1, 0, wait=True)
        self._position = None  # with an iterator of its own

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
        return self._step - self._begun_step >= self._every_steps

    def _save(self, epoch: int, batch: int) -> None:
        """Saves a checkpoint of this step; in the background, begins to save one."""
        self._advance(epoch, batch, wait=True)  # the previous one
        strategy = self.model.distribute_strategy
        collectives = collectives_of(strategy)
        if not self._in_step:
            refresh(strategy)
            # Workers may have taken different numbers of steps, but all write to one folder.
            steps = collectives.all_gather(tf.constant([self._step], tf.int64))
            self._step = int(tf.reduce_max(steps))
        self._begun_step = self._step
        if self._in_step and self._saved_step == self._step:
            return  # the previous one was cut only now
        self._save_begin = time.monotonic()
        self._saving = CheckpointSave(
            self._path, self.model, collectives, self._in_background, is_divided=self._in_step
        )
        # Not before, because nothing would release it if the above fails.
        self._termination = DelayedTermination(_TERMINATION_SECONDS)
        self._poll = _Poll(collectives, self._step)
        # Without rows nothing is written before the cut.
        cut = not self._saving.has_rows
        self._advance(epoch, batch, wait=not self._in_background, cut=cut)

    def _advance(self, epoch: int, batch: int, wait: bool = False, cut: bool = False) -> None:
        """Takes the checkpoint that is being saved through the stages that all are ready for.

        Args:
          epoch: the epoch in which training would be resumed if the next stage is the cut.
          batch: the batch of the epoch.
          wait: whether to wait for all stages.
          cut: whether to wait for the cut.
        """
        while self._saving is not None:
            if not (wait or (cut and not self._saving.is_cut)):
                is_ready, is_ending = self._poll.ask(
                    self._step, self._saving.is_ready, self._termination.is_requested
                )
                if not (is_ready or is_ending):
                    return
                wait = is_ending
            saving, self._saving = self._saving, None
            try:
                saving.finish_stage()
                if saving.is_published:
                    self._last_save = time.time(), time.monotonic() - self._save_begin
                    return
                if saving.is_cut:
                    saving.publish()
                    self._watch_size(saving.position_bytes)
                else:
                    saving.cut(self._step, epoch, batch, self._position_to_save(), self._data())
                    self._saved_step = self._step
                self._saving = saving
            finally:
                if self._saving is None:  # it is published, or given up by an error
                    self._termination.release()

    def _position_to_save(self) -> Any:
        """Returns the position in the data; None if it cannot be saved, or is too large."""
        fit = running_fit()
        # Keras counts the steps of such an iterator itself, and starts another one at its end.
        is_counted = fit.has_endless_iterator and fit.steps is not None
        if self._position is None or is_counted or self._position_bytes > _POSITION_BYTES:
            return None
        return self._position.of(fit.iterator)

    def _watch_size(self, size: int) -> None:
        """Stops saving positions in the data that are too large to be written again and again."""
        if size > _POSITION_BYTES:
            logging.warning(
                "The position in the data takes %d MiB in a checkpoint, because the shuffle buffer "
                "and other examples that were read ahead are part of it. From the next one on, "
                "checkpoints leave it out, and a job that is resumed reads the data again from the "
                "first epoch. To avoid this, pass a smaller buffer size to shuffle().",
                size >> 20,
            )  # fmt: skip
            self._position_bytes = size

    def _data(self) -> dict[str, Any]:
        """Returns a description of this worker's data, by which others are recognized."""
        fit = running_fit()
        return {"steps": fit.steps, "spec": spec_text(fit.element_spec)}

    def _has_position(self, latest: Mapping[str, Any]) -> bool:
        """Returns whether the iterators of all workers can continue at their positions.

        Raises:
          ValueError: if a position is damaged or of other data.
        """
        strategy = self.model.distribute_strategy
        collectives = collectives_of(strategy)
        if not checkpoint_files.has_position(self._path, latest, collectives):
            return False
        fit = running_fit()
        error = None
        try:
            saved = checkpoint_files.read_data(self._path, latest, collectives.rank)
            if fit.steps is None:
                fit.steps = saved["steps"]
            found = self._data()
            if found != saved:
                raise ValueError(f"{_text_of(found)}, where the checkpoint has {_text_of(saved)}")
            # If `fit` begins with an epoch, its first iterator has the order that follows.
            self._position = self._move_to(latest, fit.new_iterator())
        except ValueError as raised:
            files = self._path / latest["folder"] / "data-*"
            error = ValueError(
                "The data must be those of the job that saved the checkpoint, and the version of "
                f"TensorFlow the same. Received: {raised}. To read the data again from the first "
                f"epoch instead, remove {str(files)!r}."
            )
        raise_on_all(collectives, "Restoring the position in the data", error)
        return True

    def _restore(self, latest: Mapping[str, Any], arrays: list[np.ndarray]) -> None:
        checkpoint_files.restore(self._path, self.model, latest, arrays)
        self._step = self._saved_step = self._begun_step = latest["step"]
        logging.info("Training continues after step %d.", self._step)

    def _resume(self, latest: Mapping[str, Any], has_position: bool) -> None:
        """Lets `fit` continue at the checkpoint's position in the data."""
        fit = running_fit()
        begin_at(self.model, latest["epoch"])
        self._to_skip = latest["batch"]
        move = None
        if has_position:
            if self._to_skip or fit.has_endless_iterator:
                move = functools.partial(self._move_to, latest)
        else:
            for _ in range(fit.initial_epoch, latest["epoch"]):
                with fit.epochs.catch_stop_iteration():
                    for _, _, iterator in fit.epochs:
                        self._skip(iterator)
        skip = (lambda iterator: None) if has_position else self._skip
        self.model.train_function = self._begin_late(self.model.train_function, move, skip)

    def _move_to(self, latest: Mapping[str, Any], iterator: Any) -> IteratorPosition:
        rank = collectives_of(self.model.distribute_strategy).rank
        return checkpoint_files.restore_data(self._path, latest, rank, iterator)

    def _skip(self, iterator: Any) -> None:
        for _ in range(self.model.steps_per_execution):
            next(iterator)

    def _begin_late(
        self,
        train: Callable[[Any], Any],
        move: Callable[[Any], IteratorPosition] | None,
        skip: Callable[[Any], object],
    ) -> Callable[[Any], Any]:
        """Returns a train function that skips the batches of earlier steps and runs the others.

        Args:
          train: Keras's train function.
          move: moves the iterator before the first batch; None leaves it where it is.
          skip: skips the batches of an execution.
        """

        def train_or_skip(iterator: Any) -> Any:
            nonlocal move
            if move is not None:
                self._position = move(iterator)
                move = None
            if self._to_skip:
                skip(iterator)
                return {}
            self.model.train_function = train
            return train(iterator)

        return train_or_skip


def _text_of(data: Mapping[str, Any]) -> str:
    return f"{data['steps'] or 'an unknown number of'} steps an epoch of {data['spec']}"


class _Poll:
    """Asks the workers about ten times a second, at the same steps, whether all are ready.

    Args:
      collectives: the workers.
      step: the present step.
    """

    def __init__(self, collectives: Collectives, step: int):
        self._collectives = collectives
        self._asked_at, self._asked_step, self._next_step = time.monotonic(), step, step + 1

    def ask(self, step: int, is_ready: bool, is_ending: bool) -> tuple[bool, bool]:
        """Returns whether all workers are ready, and whether any worker is to end.

        Args:
          step: the present step, the same on all workers.
          is_ready: whether this worker is ready.
          is_ending: whether this worker is to end.
        """
        if step < self._next_step:
            return False, False
        now = time.monotonic()
        seconds = (now - self._asked_at) / (step - self._asked_step)
        steps = max(int(_POLL_SECONDS / max(seconds, 1e-6)), 1)
        answers = tf.constant([[is_ready, is_ending, steps]], tf.int32)
        ready, ending, proposed = self._collectives.all_gather(answers).numpy().T
        # All have to ask at the same step, so each takes what the slowest one proposes.
        self._asked_at, self._asked_step, self._next_step = now, step, step + int(proposed.min())
        return bool(ready.all()), bool(ending.any())
