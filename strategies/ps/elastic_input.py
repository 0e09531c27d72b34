"""Input of an elastic job: each epoch is divided among the workers that are present."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from strategies.compat.keras import (
    adapter_name,
    begin_at,
    initial_epoch_of_fit,
    is_building_model,
    running_call,
    running_fit,
    running_method,
)
from strategies.compat.tensorflow import ResourceVariable
from strategies.data.distributed_dataset import ReplicaDataset
from strategies.data.sharding import NO_PART, Epochs, shard_by, undo_sharding
from strategies.ps.input import ServerDataset
from strategies.ps.presence import Part, Presence
from strategies.utils.devices import HOST

# More epochs than any `fit` has.
_NO_EPOCH = 1 << 31
_OTHER_DATA = {"PyDatasetAdapter": "a PyDataset", "GeneratorDataAdapter": "a generator"}


def elastic_dataset(
    dataset: tf.data.Dataset,
    strategy: tf.distribute.Strategy,
    options: tf.distribute.InputOptions | None,
    presence: Presence,
) -> ServerDataset:
    """Returns the dataset of a worker that divides each epoch with those that are present.

    Args:
      dataset: the dataset of all workers.
      strategy: the strategy that distributes the dataset.
      options: how batches are placed on the devices.
      presence: who is present.
    """
    replicas = len(strategy.extended.worker_devices)
    with tf.init_scope(), tf.device(HOST):
        part = ResourceVariable(tf.constant(NO_PART, tf.int64), trainable=False)
    # Without a dataset of all examples, this worker's own are all that it can train on.
    whole = undo_sharding(dataset)
    if whole is not None:
        own = shard_by(whole, part, replicas)
    elif replicas == 1:
        own = dataset
    else:
        raise ValueError(
            "A worker with several replicas must divide a dataset of all workers in a job with "
            "--workers MIN:MAX. Received: a dataset with AutoShardPolicy.OFF. Omit the policy, or "
            "use one replica for each worker."
        )
    shard = ReplicaDataset(own, strategy, options)
    method, model, _ = running_call()
    if method in ("evaluate", "predict"):
        return ServerDataset(shard, strategy, source=dataset)
    return ElasticDataset(shard, strategy, dataset, presence, part, model if method else None)


class ElasticDataset(ServerDataset):
    """A dataset to train on whose examples are divided anew in each epoch.

    See [Note: workers that come and go] in presence.py. An epoch is one of the running `fit`;
    otherwise, each iteration over the dataset is one.

    Args:
      part: this worker's examples.
      strategy: the strategy that distributes the dataset.
      source: the dataset of all workers.
      presence: who is present.
      place: the variable that determines which examples are this worker's; see `shard_by`.
      model: the model whose `fit` distributes the dataset; None if the script does.
    """

    def __init__(
        self,
        part: ReplicaDataset,
        strategy: tf.distribute.Strategy,
        source: tf.data.Dataset,
        presence: Presence,
        place: tf.Variable,
        model: Any = None,
    ):
        super().__init__(part, strategy, source)
        self._presence = presence
        self._place = place
        self._number = presence.new_dataset("loop" if model is None else "fit")
        self._first = 0
        self._epoch = -1
        # Whether the examples of earlier epochs were read, without training on them.
        self._has_caught_up = presence.is_member
        if model is not None:
            self._begin_fit(model)

    def _begin_fit(self, model: Any) -> None:
        """Makes `fit` begin with the epoch that the others are in."""
        if any(cls.__module__.startswith("tf_keras.") for cls in type(model).__mro__):
            raise ValueError(
                "A job with --workers MIN:MAX requires Keras 3 or a custom training loop. "
                "Received: fit of tf_keras, which cannot begin with a later epoch. Use Keras 3, or "
                "a fixed number of workers."
            )
        if (adapter := adapter_name()) in _OTHER_DATA:
            raise ValueError(
                "A job with --workers MIN:MAX must train on arrays or a tf.data.Dataset, because a "
                "worker that joins reads the earlier epochs, to have the same order as the others. "
                f"Received: {_OTHER_DATA[adapter]}. Use a tf.data.Dataset, or a fixed number of "
                "workers."
            )
        self._first = initial_epoch_of_fit()
        begin_at(model, 0)  # a former fit may have begun later
        if not self._presence.is_member:
            newest = self._presence.newest(self._number)
            is_past = self._presence.is_past(self._number)
            begin_at(model, _NO_EPOCH if is_past else max(newest, 0))
            if is_past:
                logging.warning("This worker joins after a fit that the others have completed.")
            elif newest > 0:
                logging.warning(
                    "This worker joins in epoch %d, and trains from the next one on.", newest
                )

    def __iter__(self) -> Iterator[Any]:
        method = running_method() if tf.executing_eagerly() else None
        if not tf.executing_eagerly():
            raise RuntimeError(
                "In a job with --workers MIN:MAX, an epoch must begin outside of a tf.function, "
                "because its examples are divided then. Received: an iteration over a distributed "
                "dataset in a tf.function. Iterate outside, and call a tf.function for each step."
            )
        if method in ("evaluate", "predict") or is_building_model():
            return super().__iter__()
        epoch = self._next_epoch(method)
        # At the end of an epoch, Keras makes one more iterator.
        if epoch is not None and epoch != self._epoch:
            self._epoch = epoch
            self._begin(epoch)
        return super().__iter__()

    def _next_epoch(self, method: str | None) -> int | None:
        """Returns the epoch; None before the first one, in which `Checkpoint` only skips data."""
        if method != "fit":
            return self._epoch + 1
        fit = running_fit()
        if fit.has_endless_iterator:
            raise ValueError(
                "steps_per_epoch cannot be used in a job with --workers MIN:MAX, because the "
                "examples are divided at the start of each epoch of the data. Received: "
                f"steps_per_epoch={fit.epochs.steps_per_epoch}. Omit it; a dataset may have "
                "take(steps)."
            )
        return fit.epoch

    def _begin(self, epoch: int) -> None:
        """Determines this worker's part of an epoch, and joins the others if they are in it."""
        presence = self._presence
        presence.part = None
        self._place.assign(NO_PART)
        if not self._has_caught_up:
            self._has_caught_up = True
            self._catch_up(epoch)

        def is_late() -> bool:
            return presence.newest(self._number) > epoch

        with presence.beginning():
            if not presence.is_member:
                presence.join(is_late)
            if not presence.is_member:
                return
            place = presence.begin_epoch(self._number, epoch)
            if not presence.is_member:
                presence.join(is_late)
            if place is not None:
                self._place.assign(place)
                presence.part = Part(self._number, epoch, self._steps())
                self._extended.begin_count()

    def _steps(self) -> str:
        """Returns a description of the number of steps in an epoch."""
        known = running_fit().steps if running_method() == "fit" else None
        if known is not None:  # TensorFlow does not know it of arrays
            return str(known)
        dataset = self._part._dataset  # noqa: SLF001
        one = dataset.one_epoch if isinstance(dataset, Epochs) else dataset
        steps = int(one.cardinality())
        return str(steps) if steps >= 0 else "an unknown number of"

    def _catch_up(self, epoch: int) -> None:
        """Reads the earlier epochs, so that this one is in the same order as for the others.

        As often as the others have, this makes an iterator, too: each may be another order.
        """
        if running_method() != "fit":
            # The script iterates over each of the earlier epochs, in which this worker has no part.
            return
        knows_steps = running_fit().steps is not None
        for _ in range(self._first, epoch):
            for _ in self._new_iterator():
                pass
            if knows_steps:
                self._new_iterator()

    def _new_iterator(self) -> Any:
        with tf.device(HOST):
            return iter(self._part._dataset)  # noqa: SLF001
