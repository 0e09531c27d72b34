"""Prefetching of rows during the preceding training steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.compat.tensorflow import PerReplica
from strategies.data.elements import append_empty, without_autograph
from strategies.data.same_order import in_common_order
from strategies.data.sharding import Epochs, mark_sharded, may_prefetch, shard_dataset
from strategies.embedding.backends.backend import backend_of
from strategies.embedding.layer import EmbeddingLayer
from strategies.embedding.lookup.group_lookup import keys_of
from strategies.embedding.lookup.prefetch_queue import PrefetchQueue
from strategies.embedding.lookup.router import join
from strategies.embedding.shard.table_shard import Group
from strategies.utils.argument_checks import check_whole_number
from tf_config.worker_range import WorkerRange

_NOT_DETERMINISTIC = (
    "prefetch_rows requires a dataset whose order is deterministic. Received: a dataset with the "
    "option ExternalStatePolicy.IGNORE. Omit this option."
)


def prefetch_rows(
    dataset: tf.data.Dataset,
    layer: EmbeddingLayer,
    ids: Callable[..., Any],
    *,
    steps: int = 1,
) -> tf.data.Dataset:
    """Prefetches the rows of a dataset's batches while the step before computes.

    Without prefetching, each step waits for its rows. With it, a worker requests the rows of the
    next batch while it computes the current one:

        layer = strategies.DistributedEmbedding(16)
        dataset = strategies.prefetch_rows(dataset, layer, lambda x, y: x["ids"])
        model.fit(dataset, epochs=3)

    With parameter servers in "async" and "half_async", the cost is staleness: prefetched
    rows lack the updates of `steps` more of the worker's own steps than without prefetching. An id
    gets its row, and counts for `admission` and `eviction`, when it is prefetched. So use the
    dataset for training only. A batch counts even if it is prefetched but not trained on, because
    training ends before the dataset does, or because `evict` or `set_rows` is called in between.

    If workers store the rows and exchange them over a network, nothing is stale: results are the
    same, to the bit, as without prefetching. The ids of the next batch and the rows that they have
    are exchanged ahead, and the rows that the step changes are exchanged again after it. Then all
    training steps of the layer must use batches of datasets that `prefetch_rows` returned, one
    dataset at a time, and it must be called before the first step.

    The dataset is returned unchanged on a single worker, if workers share memory, in which
    exchanges take microseconds, in "sync", and if workers train rows between exchanges, as in "geo"
    without `geo_rows="servers"`. `layer.statistics()` reports how many rows were `prefetched`.

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
      steps: number of batches to prefetch; 1 if workers store the rows.

    Returns:
      A dataset of the same batches.

    Raises:
      TypeError: if `dataset` is not a `tf.data.Dataset` or `layer` not a `DistributedEmbedding`.
      ValueError: if `steps` or the batches are invalid, or the dataset consists of arrays that
        Keras shuffles; if workers store the rows, also if the layer has been trained, or has an L2
        penalty; in training, if the output of `ids` differs from the layer's inputs.
    """
    _check(dataset, layer, steps)
    backend = backend_of(layer.made_under)
    if backend.may_exchange_ahead:
        return _exchange_ahead(dataset, layer, ids, steps)
    # In an elastic job, it is not known before an epoch which examples are this worker's.
    if not backend.may_prefetch or WorkerRange.from_env() is not None:
        return dataset
    extended = layer.made_under.extended
    replicas = len(extended.worker_devices)
    own = shard_dataset(dataset, extended.workers, replicas, in_step=False)
    if isinstance(own, Epochs):
        raise ValueError(_NOT_DETERMINISTIC)
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


def _exchange_ahead(
    dataset: tf.data.Dataset, layer: EmbeddingLayer, ids: Callable[..., Any], steps: int
) -> tf.data.Dataset:
    """Returns a dataset of the same batches, of which the rows are exchanged a step ahead."""
    if steps != 1:
        raise ValueError(
            "Workers in step exchange the rows of one batch ahead, because those of later batches "
            f"would mostly be exchanged again. Received: steps={steps}. Omit steps."
        )
    extended = layer.made_under.extended
    replicas = len(extended.worker_devices)
    common = in_common_order(dataset, extended.collectives)
    own = shard_dataset(common, extended.collectives, replicas)
    if isinstance(own, Epochs):
        raise ValueError(_NOT_DETERMINISTIC)
    batch_keys = layer.expect_batches(replicas)

    def keys_of_batch(batch: tuple[Any, ...]) -> list[tf.Tensor]:
        """Returns the keys of each group and replica, of one group after the other."""
        bags = [layer.bags(ids(*_of_replica(n, batch))) for n in range(replicas)]
        return [keys_of(layer.specs.ids(g, each))[0] for g in batch_keys for each in bags]

    def submit(place: np.ndarray, has_following: np.ndarray, *keys: np.ndarray) -> np.int64:
        own_keys, following = keys[: len(keys) // 2], keys[len(keys) // 2 :]
        for number, each in enumerate(batch_keys.values()):
            part = slice(number * replicas, (number + 1) * replicas)
            each.submit(
                (int(place[0]), int(place[1])),
                own_keys[part],
                following[part] if has_following else None,
            )
        return np.int64(0)

    first = next(iter(batch_keys.values()))
    return mark_sharded(_with_following(own, keys_of_batch, first.begin, submit), lambda: dataset)


def _with_following(
    own: tf.data.Dataset,
    keys_of_batch: Callable[[tuple[Any, ...]], list[tf.Tensor]],
    begin: Callable[[], int],
    submit: Callable[..., np.int64],
) -> tf.data.Dataset:
    """Returns the same batches, each of which submits its keys and those of the batch after it.

    So a batch comes only when the pipeline has the next one.

    Args:
      own: this worker's batches.
      keys_of_batch: returns the keys of a batch.
      begin: returns the number of a new iteration.
      submit: takes the number of the iteration and of the batch in it, int64 [2], whether another
        batch follows, the keys of the batch, and those of the one that follows.
    """
    spec = own.element_spec
    pairs = append_empty(own, 1)

    @without_autograph
    def flatten(has: tf.Tensor, batch: Any) -> tuple[Any, ...]:
        arguments = batch if type(spec) is tuple else (batch,)
        parts = tf.nest.flatten(batch, expand_composites=True)
        return has, tuple(parts), tuple(keys_of_batch(arguments))

    @without_autograph
    def pair(state: Any, element: Any) -> tuple[Any, Any]:
        place, batch, keys = state
        has, new_batch, new_keys = element
        state = place + tf.constant([0, 1], tf.int64), new_batch, new_keys
        return state, (place, batch, keys, has, new_keys)

    flat = pairs.map(flatten)
    _, batch_spec, keys_spec = flat.element_spec

    def paired(iteration: tf.Tensor) -> tf.data.Dataset:
        # Before the first batch, there is one that is left out.
        place = tf.stack([iteration, tf.constant(-1, tf.int64)])
        nothing = tf.nest.map_structure(_nothing, (batch_spec, keys_spec))
        return flat.scan((place, *nothing), pair)

    @without_autograph
    def submitted(place: Any, batch: Any, keys: Any, has_following: Any, following: Any) -> Any:
        done = tf.numpy_function(submit, [place, has_following, *keys, *following], tf.int64)
        with tf.control_dependencies([done]):
            parts = [
                tf.ensure_shape(tf.identity(each), one.shape)
                for each, one in zip(batch, batch_spec, strict=True)
            ]
        return tf.nest.pack_sequence_as(spec, parts, expand_composites=True)

    iteration = tf.data.Dataset.range(1).map(
        without_autograph(
            lambda _: tf.ensure_shape(
                tf.numpy_function(lambda: np.int64(begin()), [], tf.int64), []
            )
        )
    )
    batches = iteration.flat_map(paired)
    batches = batches.filter(without_autograph(lambda place, *_: place[1] >= 0)).map(submitted)
    if may_prefetch(own):
        batches = batches.prefetch(1)
    count = int(own.cardinality())
    if count != tf.data.UNKNOWN_CARDINALITY:
        batches = batches.apply(tf.data.experimental.assert_cardinality(count))
    return batches


def _nothing(spec: tf.TensorSpec) -> tf.Tensor:
    return tf.zeros([size or 0 for size in spec.shape], spec.dtype)


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
