"""Callbacks that run on the first worker only, while all workers train."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from strategies.callbacks.backup import replace_backups_atomically
from strategies.callbacks.base import is_of_tf_keras
from strategies.collectives.single_worker import single_worker_scope
from strategies.collectives.workers import are_in_step, barrier, collectives_of
from strategies.compat.keras import (
    default_hook,
    initial_epoch,
    is_default_hook,
    optimizer_variables,
    tensorflow_variable,
)
from strategies.equality import verify_equal
from strategies.variables.partitioned import PartitionedVariable

# Keras's callbacks that change training based on the logs, which are the same everywhere. Those of
# this package say so by their attribute `runs_on_all_workers`.
_IN_STEP_BY_THEMSELVES = (
    "EarlyStopping",
    "LearningRateScheduler",
    "ReduceLROnPlateau",
    "SwapEMAWeights",
    "TerminateOnNaN",
)
# tf_keras's own ask the strategy which worker writes, and read variables that are split over the
# workers, so they run on all workers.
_TF_KERAS_ON_ALL = ("BackupAndRestore", "ModelCheckpoint", "TensorBoard")
# Hooks that run on all workers.
_ON_ALL = {"BackupAndRestore": ("on_train_begin",)}


def on_first_worker(callback: Any, strategy: tf.distribute.Strategy) -> Any:
    """Returns a callback that runs `callback`, which writes files, on the first worker only.

        callbacks = [
            keras.callbacks.EarlyStopping("val_loss"),
            strategies.callbacks.on_first_worker(
                keras.callbacks.ModelCheckpoint("{epoch}.keras"), strategy
            ),
        ]

    On the other workers the hooks do nothing, except what keeps the workers in step:
    `BackupAndRestore` restores on all workers, which must see the same `backup_dir`, and no worker
    begins or leaves `fit` before the first one has read or written its files. A worker that is
    killed while it saves leaves the last backup intact: a new one replaces it as a whole.
    tf_keras's `ModelCheckpoint`, `BackupAndRestore` and `TensorBoard` handle workers that are in
    step themselves; they run on all workers, which wait for each other in the same way.

    Callbacks that change training based on the logs (`EarlyStopping`, `ReduceLROnPlateau`, ...)
    do the same on all workers, because the logs are the same; pass them to `fit` directly. So must
    a callback that calls `evaluate` or `predict`, in which all workers take part.

    Args:
      callback: a callback of Keras 3 or tf_keras, or your own.
      strategy: the strategy of the workers.

    Raises:
      ValueError: if the callback has to act on all workers; during training, if it stops training
        or sets the learning rate on the first worker alone, or if the workers do not see the same
        backup.
    """
    for name, cls in _classes(callback).items():
        if name in _IN_STEP_BY_THEMSELVES or vars(cls).get("runs_on_all_workers"):
            raise ValueError(
                "A callback that runs on the first worker only cannot change the training. "
                f"Received: {name}. Pass it to fit without on_first_worker: the logs are the same "
                "on all workers, so it does the same on each."
            )
    return _OnFirstWorker(callback, strategy)


class _OnFirstWorker:
    """Runs a callback's hooks on the first worker; other attributes are the callback's own."""

    def __init__(self, callback: Any, strategy: tf.distribute.Strategy):
        self._callback = callback
        self._strategy = strategy
        self._collectives = collectives_of(strategy)
        self._model: Any = None
        names = set(_classes(callback))
        # Where workers are not in step, tf_keras takes each of them for the only worker.
        self._runs_on_all_workers = (
            is_of_tf_keras(callback)
            and are_in_step(strategy)
            and bool(names & set(_TF_KERAS_ON_ALL))
        )
        self._on_all = {hook for name in names for hook in _ON_ALL.get(name, ())}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._callback, name)
        if name == "set_model":
            # TensorBoard's set_model writes files.
            needed = self._runs_on_all_workers or self._on_all or self._collectives.rank == 0
            return functools.partial(self._set_model, found if needed else _nothing)
        if not name.startswith("on_"):
            return found
        if name in ("on_train_begin", "on_train_end"):
            return self._add_barrier(name, found)
        if self._runs_on_all_workers or is_default_hook(found):
            return found
        if not self._takes_part(name):
            return _nothing
        return self._restrict_to_first_worker(
            name, replace_backups_atomically(self._callback, found)
        )

    def _set_model(self, hook: Callable[..., Any], model: Any) -> None:
        self._model = model
        hook(model)

    def _takes_part(self, name: str) -> bool:
        # The others take part in gathering partitioned state, before the first worker saves it.
        return self._collectives.rank == 0 or (name == "on_epoch_end" and bool(self._state()))

    def _state(self) -> list[PartitionedVariable]:
        """Returns the optimizer's variables that are partitioned over the workers."""
        variables = map(tensorflow_variable, optimizer_variables(self._model))
        return [variable for variable in variables if isinstance(variable, PartitionedVariable)]

    def _add_barrier(self, name: str, hook: Callable[..., Any]) -> Callable[..., Any]:
        def run_on_all_workers(*args: Any, **kwargs: Any) -> None:
            if self._runs_on_all_workers or name in self._on_all:
                hook(*args, **kwargs)
            elif self._collectives.rank == 0:
                self._restrict_to_first_worker(name, hook)(*args, **kwargs)
            if name in self._on_all:
                self._check_same_start()
            barrier(self._strategy)

        return run_on_all_workers

    def _restrict_to_first_worker(self, name: str, hook: Callable[..., Any]) -> Callable[..., Any]:
        def run_on_first_worker(*args: Any, **kwargs: Any) -> None:
            with contextlib.ExitStack() as stack:
                for variable in self._state() if name == "on_epoch_end" else ():
                    stack.enter_context(variable.cache_whole())
                if self._collectives.rank > 0:
                    return
                stack.enter_context(single_worker_scope())
                keep_state(*args, **kwargs)

        def keep_state(*args: Any, **kwargs: Any) -> None:
            before = self._training_state(name)
            hook(*args, **kwargs)
            if self._training_state(name) != before:
                raise ValueError(
                    "A callback that runs on the first worker only cannot change the training. "
                    f"Received: {type(self._callback).__name__}.{name}, which stopped it or set "
                    "the learning rate. Pass the callback to fit without on_first_worker, and let "
                    "it decide by the logs alone."
                )

        return run_on_first_worker if self._collectives.size > 1 else hook

    def _training_state(self, name: str) -> tuple[Any, ...]:
        model = self._callback.model
        stop = bool(getattr(model, "stop_training", False))
        if "batch" in name:  # the learning rate may be on a GPU, so it is not read in every step
            return (stop,)
        rate: Any = getattr(getattr(model, "optimizer", None), "learning_rate", None)
        return stop, float(rate.numpy()) if hasattr(rate, "numpy") else rate

    def _check_same_start(self) -> None:
        epoch = initial_epoch(self._callback.model)
        epochs = self._collectives.all_gather(tf.constant([epoch])).numpy().tolist()
        if len(set(epochs)) > 1:
            raise ValueError(
                f"All workers must restore the same backup. Received: initial epochs {epochs}, by "
                "rank. Put backup_dir on a file system that all workers share."
            )
        verify_equal(self._strategy, self._callback.model.variables)


@default_hook  # Keras need not wait for it
def _nothing(*args: Any, **kwargs: Any) -> None:
    """Replaces a hook on the other workers."""


def _classes(callback: Any) -> dict[str, type]:
    """Returns a callback's classes that Keras or this package defines, by name."""
    makers = ("keras", "tf_keras", "strategies")
    return {
        cls.__name__: cls
        for cls in type(callback).__mro__
        if cls.__module__.split(".")[0] in makers
    }
