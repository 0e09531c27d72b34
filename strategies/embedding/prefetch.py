"""Prefetching of rows from parameter servers for the next batches, while a step computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from strategies._tensorflow import PerReplica
from strategies.checks import check_whole_number
from strategies.data.sharding import Epochs, mark_sharded, shard_dataset
from strategies.embedding.layer import EmbeddingLayer
from strategies.embedding.lookup.lookup import keys_of
from strategies.embedding.lookup.prefetch_queue import PrefetchQueue
from strategies.embedding.shard.shard import Group
from strategies.ps.extended import ServerExtended


def prefetch_rows(
    dataset: tf.data.Dataset,
    layer: EmbeddingLayer,
    ids: Callable[..., Any],
    *,
    steps: int = 1,
) -> tf.data.Dataset:
    """Prefetches the rows of a dataset's batches from parameter servers, before their steps begin.

    Without it a step begins by waiting for its rows. With it, a worker looks up those of the next
    batch while it computes this one:

        layer = strategies.DistributedEmbedding(16)
        dataset = strategies.prefetch_rows(dataset, layer, lambda x, y: x["ids"])
        model.fit(dataset, epochs=3)

    The cost is staleness: rows lack the changes of `steps` more of the worker's own steps
    than in the mode without it. An id gets its row, and counts for `admission` and `eviction`,
    when it is prefetched; so the dataset is for training alone, and a batch that is prefetched and
    not trained on, where training ends before the dataset or `evict` or `set_rows` comes between,
    has counted.

    Where workers go in step, which excludes stale rows, and where rows are in workers, the
    dataset is returned as it is. `layer.statistics()` says how many rows were `prefetched`.

    >>> from strategies.embedding.keras_layer import DistributedEmbedding
    >>> dataset, layer = tf.data.Dataset.range(8).batch(2), DistributedEmbedding(16)
    >>> prefetch_rows(dataset, layer, lambda ids: ids) is dataset
    True

    Pass the dataset to `fit` or `strategy.experimental_distribute_dataset` as it is: under
    parameter servers, it is this worker's part.

    Args:
      dataset: global batches, as one would pass them to `fit`; or of `read_files`.
      layer: the layer that looks up their ids.
      ids: a function that takes a batch as `dataset.map` gives it, and returns what the layer is
        called with in training. It is made of TensorFlow's operations.
      steps: number of batches to prefetch.

    Returns:
      The dataset of the same batches.

    Raises:
      TypeError: if the layer or the dataset is of another type.
      ValueError: if `steps` or the batches are invalid, or the dataset is arrays that Keras
        shuffles. Training raises it if what `ids` returns is not what the layer looks up.
    """
    _check(dataset, layer, steps)
    extended = layer.made_under.extended
    if not isinstance(extended, ServerExtended) or extended.in_step:
        return dataset
    replicas = len(extended.worker_devices)
    own = shard_dataset(dataset, extended.workers, replicas, in_step=False)
    if isinstance(own, Epochs):
        raise ValueError(
            "Rows are prefetched in the order of a dataset. Received: one that ignores external "
            "state and is the same on all workers. Leave its options out."
        )
    queues = {group: PrefetchQueue((steps + 1) * replicas) for group in layer.specs.groups}

    def submit(*batch: Any) -> Any:
        done = [
            _submit(layer, queues, ids(*_of_replica(replica, batch)), replica == 0)
            for replica in range(replicas)
        ]
        with tf.control_dependencies(done):
            same = tf.nest.map_structure(tf.identity, batch, expand_composites=True)
        return same[0] if len(same) == 1 else same

    return mark_sharded(own.map(submit).prefetch(steps), lambda: dataset)


def _submit(
    layer: EmbeddingLayer, queues: dict[Group, PrefetchQueue], inputs: Any, starts_step: bool
) -> tf.Operation:
    """Submits the lookup of what a layer will be called with; returns the operation."""
    bags = layer.bags(inputs)
    done = []
    for group in queues:

        def submit(keys: np.ndarray, group: Group = group) -> np.int64:
            # The first batches may come before the layer is built, or while it is frozen.
            if layer.tables is not None and layer.trainable:
                layer.tables.prefetch(group, queues[group], keys, starts_step)
            return np.int64(0)

        keys, _ = keys_of(layer.specs.ids(group, bags))
        done.append(tf.numpy_function(submit, [keys], tf.int64))
    return tf.group(done)


def _of_replica(replica: int, batch: tuple[Any, ...]) -> tuple[Any, ...]:
    def part(value: Any) -> Any:
        return value.values[replica] if isinstance(value, PerReplica) else value

    return tf.nest.map_structure(part, batch)


def _check(dataset: Any, layer: Any, steps: Any) -> None:
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(
            "Batches come from a tf.data.Dataset. Received: "
            f"{type(dataset).__name__}. Make one, with tf.data.Dataset.from_tensor_slices and "
            "batch for example."
        )
    if not isinstance(layer, EmbeddingLayer):
        raise TypeError(
            "The rows are those of a DistributedEmbedding. Received: "
            f"{type(layer).__name__}. Pass the layer that looks up."
        )
    check_whole_number("steps", steps, 1)
