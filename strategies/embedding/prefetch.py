"""Prefetching of rows from parameter servers during the preceding training steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.compat.tensorflow import PerReplica
from strategies.data.sharding import Epochs, mark_sharded, shard_dataset
from strategies.embedding.backends.backend import backend_of
from strategies.embedding.layer import EmbeddingLayer
from strategies.embedding.lookup.group_lookup import keys_of
from strategies.embedding.lookup.prefetch_queue import PrefetchQueue
from strategies.embedding.lookup.router import join
from strategies.embedding.shard.table_shard import Group
from strategies.utils.argument_checks import check_whole_number
from tf_config.worker_range import WorkerRange


def prefetch_rows(
    dataset: tf.data.Dataset,
    layer: EmbeddingLayer,
    ids: Callable[..., Any],
    *,
    steps: int = 1,
) -> tf.data.Dataset:
    """Prefetches the rows of a dataset's batches from parameter servers.

    Without prefetching, each step waits for its rows. With it, a worker looks up the rows of the
    next batch while it computes the current one:

        layer = strategies.DistributedEmbedding(16)
        dataset = strategies.prefetch_rows(dataset, layer, lambda x, y: x["ids"])
        model.fit(dataset, epochs=3)

    The cost is staleness: prefetched rows lack the updates of `steps` more of the worker's own
    steps than without prefetching. An id gets its row, and counts for `admission` and `eviction`,
    when it is prefetched. So use the dataset for training only. A batch counts even if it is
    prefetched but not trained on, because training ends before the dataset does, or because `evict`
    or `set_rows` is called in between.

    The dataset is returned unchanged if workers run in step, so that rows cannot be stale, or if
    the rows are stored on workers. `layer.statistics()` reports how many rows were `prefetched`.

    >>> from strategies.embedding.keras_layer import DistributedEmbedding
    >>> dataset, layer = tf.data.Dataset.range(8).batch(2), DistributedEmbedding(16)
    >>> prefetch_rows(dataset, layer, lambda ids: ids) is dataset
    True

    Pass the result to `fit` or `strategy.experimental_distribute_dataset` without further
    transformations: with parameter servers, it is already this worker's shard.

    Args:
      dataset: dataset of global batches, as for `fit`, or a dataset of `read_files`.
      layer: layer that looks up the ids.
      ids: function from a batch, with the arguments of `dataset.map`, to the inputs that the layer
        is called with in training. It must consist of TensorFlow operations.
      steps: number of batches to prefetch.

    Returns:
      A dataset of the same batches.

    Raises:
      TypeError: if `dataset` is not a `tf.data.Dataset` or `layer` not a `DistributedEmbedding`.
      ValueError: if `steps` or the batches are invalid, or the dataset consists of arrays that
        Keras shuffles; in training, if the output of `ids` differs from the layer's inputs.
    """
    _check(dataset, layer, steps)
    # In an elastic job, it is not known before an epoch which examples are this worker's.
    if not backend_of(layer.made_under).may_prefetch or WorkerRange.from_env() is not None:
        return dataset
    extended = layer.made_under.extended
    replicas = len(extended.worker_devices)
    own = shard_dataset(dataset, extended.workers, replicas, in_step=False)
    if isinstance(own, Epochs):
        raise ValueError(
            "prefetch_rows requires a dataset whose order is deterministic. Received: a dataset "
            "with the option ExternalStatePolicy.IGNORE. Omit this option."
        )
    queues = {group: PrefetchQueue(steps + 1) for group in layer.specs.groups}

    def submit(*batch: Any) -> Any:
        of_replicas = [ids(*_of_replica(replica, batch)) for replica in range(replicas)]
        with tf.control_dependencies([_submit(layer, queues, of_replicas)]):
            same = tf.nest.map_structure(tf.identity, batch, expand_composites=True)
        return same[0] if len(same) == 1 else same

    return mark_sharded(own.map(submit).prefetch(steps), lambda: dataset)


def _submit(
    layer: EmbeddingLayer, queues: dict[Group, PrefetchQueue], inputs: Sequence[Any]
) -> tf.Operation:
    """Returns an operation that submits the lookups of each replica's next inputs."""
    bags = [layer.bags(each) for each in inputs]
    done = []
    for group in queues:

        def submit(keys: np.ndarray, group: Group = group) -> np.int64:
            # The first batches may arrive before the layer is built, or while it is frozen.
            if layer.tables is not None and layer.trainable:
                layer.tables.prefetch(group, queues[group], keys, starts_step=True)
            return np.int64(0)

        keys = [keys_of(layer.specs.ids(group, each))[0] for each in bags]
        done.append(tf.numpy_function(submit, [join(keys)], tf.int64))
    return tf.group(done)


def _of_replica(replica: int, batch: tuple[Any, ...]) -> tuple[Any, ...]:
    def part(value: Any) -> Any:
        return value.values[replica] if isinstance(value, PerReplica) else value

    return tf.nest.map_structure(part, batch)


def _check(dataset: Any, layer: Any, steps: Any) -> None:
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(
            f"Batches must come from a tf.data.Dataset. Received: {type(dataset).__name__}. Create "
            "one, for example with tf.data.Dataset.from_tensor_slices(...).batch(...)."
        )
    if not isinstance(layer, EmbeddingLayer):
        raise TypeError(
            f"layer must be a DistributedEmbedding. Received: {type(layer).__name__}. Pass the "
            "layer whose rows are prefetched."
        )
    check_whole_number("steps", steps, 1)
