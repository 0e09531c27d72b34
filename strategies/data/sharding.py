"""Sharding of datasets over workers: even batches, and the same number of steps on all workers."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from strategies.collectives import Collectives, LocalCollectives
from strategies.compat.tensorflow import (
    OptionsDataset,
    PerReplica,
    PerReplicaSpec,
    auto_shard_dataset,
    dataset_inputs,
)
from strategies.data.elements import (
    append_empty,
    batch_or_empty,
    common_sizes,
    count_examples,
    element_of,
    empty_element,
    has_unknown_sizes,
    inner_sizes,
    without_autograph,
)
from strategies.data.same_batches import add_summaries, fingerprint
from strategies.utils.assertions import assert_in_step
from strategies.utils.devices import HOST
from strategies.utils.partitioning import part_bounds

_Policy = tf.data.experimental.AutoShardPolicy
# The last of so many parts that a batch never has an example for it.
NO_PART = ((1 << 40) - 1, 1 << 40)
_Maker = Callable[[], tf.data.Dataset]
# Datasets of one worker's steps, and functions that create the dataset of all workers' examples.
_sharded: weakref.WeakKeyDictionary[tf.data.Dataset, _Maker | None] = weakref.WeakKeyDictionary()


class Epochs:
    """A dataset whose iterators, one for each epoch, continue the same run of a pipeline.

    If a global seed is set, Keras shuffles arrays in a function with a fixed seed. Each new run of
    the pipeline would then have the examples in the same order; a run that continues does not. An
    epoch that is not read to its end also ends the run, and the next epoch starts a new one. This
    is the same on all workers; see [Note: read equally far] in bounded_prefetch.py.

    Args:
      one_epoch: the dataset of one epoch.
    """

    def __init__(self, one_epoch: tf.data.Dataset):
        self.one_epoch = one_epoch
        self._endless: Any = None
        self._run: Any = None
        self._inside: Any = None
        self._steps: Any = None

    @property
    def element_spec(self) -> Any:
        """The `tf.TypeSpec`s of the batches."""
        return self.one_epoch.element_spec

    def __iter__(self) -> Iterator[Any]:
        if not tf.executing_eagerly():
            return iter(self.one_epoch)
        if not self._is_at_start():
            self._begin()
        return iter(self._steps)

    def _begin(self) -> None:
        """Starts a new run."""
        if self._run is None:
            self._build()
            return
        (run,) = tf.nest.flatten(self._run, expand_composites=True)
        tf.raw_ops.MakeIterator(
            dataset=tf.data.experimental.to_variant(self._endless), iterator=run
        )
        self._inside.assign(False)

    def _build(self) -> None:
        """Creates the first run, and a dataset that continues it up to the end of an epoch."""
        end = tf.data.Dataset.from_tensors((False, empty_element(self.element_spec)))
        inside_epoch = tf.data.Dataset.from_tensors(True).repeat()
        epoch = tf.data.Dataset.zip((inside_epoch, self.one_epoch))
        self._endless = epoch.concatenate(end).repeat()
        run = iter(self._endless)
        with tf.device(HOST):  # where tf.data runs
            inside = tf.Variable(False, trainable=False)

        @without_autograph
        def take(_: tf.Tensor) -> Any:
            more, batch = run.get_next()
            inside.assign(more)
            return more, batch

        steps = tf.data.Dataset.counter().map(take)
        steps = steps.take_while(without_autograph(lambda more, _: more))
        self._steps = steps.map(without_autograph(lambda _, batch: batch)).with_options(
            no_prefetch_options()
        )
        self._run, self._inside = run, inside

    def _is_at_start(self) -> bool:
        if self._run is None:
            return False
        # A caller that knows the number of steps reads the last batch, but not the end mark.
        if self._inside.numpy() and not next(self._run)[0].numpy():
            self._inside.assign(False)
        return not self._inside.numpy()


def may_prefetch(dataset: tf.data.Dataset | Epochs) -> bool:
    """Returns whether batches may be prefetched."""
    if isinstance(dataset, Epochs) or _unwrap_options(dataset) in _sharded:
        return False
    options = dataset.options()
    # Keras disables autotuning for a PyDataset whose threads already read ahead; batches that an
    # abandoned iterator had prefetched would be missing in the next one.
    return not (
        options.autotune.enabled is False
        or options.experimental_optimization.inject_prefetch is False
    )


def mark_sharded(dataset: tf.data.Dataset, whole: _Maker | None = None) -> tf.data.Dataset:
    """Marks a dataset as already sharded; all workers must have the same number of batches.

    `shard_dataset` does not shard the result over workers. A dataset derived from it, for example
    by `map`, has policy OFF, so `shard_dataset` treats it as the worker's own data.

    Args:
      dataset: this worker's batches.
      whole: a function that creates the dataset of all workers' examples, in global batches; None
        if it is not known.
    """
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = _Policy.OFF
    dataset = dataset.with_options(options)
    _sharded[dataset] = whole
    return dataset


def undo_sharding(dataset: tf.data.Dataset) -> tf.data.Dataset | None:
    """Returns the dataset of all workers' examples; None if only this worker's are known."""
    while (dataset := _unwrap_options(dataset)) in _sharded:
        whole = _sharded[dataset]
        if whole is None:
            return None
        dataset = whole()
    policy = dataset.options().experimental_distribute.auto_shard_policy
    return None if policy == _Policy.OFF else dataset


def _unwrap_options(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the marked dataset under options, which tf_keras's `predict` adds, or `dataset`."""
    inner = dataset
    while inner not in _sharded and isinstance(inner, OptionsDataset):
        (inner,) = dataset_inputs(inner)
    return inner if inner in _sharded else dataset


def shard_dataset(
    dataset: tf.data.Dataset,
    collectives: Collectives,
    replicas: int = 1,
    in_step: bool = True,
    stream: Callable[[], Collectives] | None = None,
    is_compared: bool = False,
) -> tf.data.Dataset | Epochs:
    """Returns this worker's shard of a dataset of global batches.

    `AutoShardPolicy` AUTO and DATA shard each batch by examples. Of n examples, the first n mod N
    of N replicas get one more than the others. The order is that in which Keras reassembles
    predictions: the first replicas of all workers, by rank, then the second ones. If a batch has
    fewer examples than replicas, some get an empty part. Every worker must have the same batches in
    the same order.

    FILE and HINT shard by files as stock tf.distribute does; with OFF, each worker has its own
    data. With these, each batch is split into N batches of 1/N of the examples.

    If a worker has several replicas, an element has a batch for each of them.

    Workers that run out of batches early continue with empty ones. With DATA, this cannot happen,
    and workers do not ask each other: the policy states that the data are the same on all workers
    (Keras sets it for arrays). If a function shuffles these data (their external state is ignored),
    the result is an `Epochs`. A dataset from `mark_sharded` is only split among the replicas of its
    worker.

    Args:
      dataset: batches whose components all have the same number of examples: tensors,
        `tf.RaggedTensor` or `tf.sparse.SparseTensor`, in any structure.
      collectives: the collectives of the workers.
      replicas: the number of replicas of each worker.
      in_step: whether all workers take the same number of steps; if not, they do not ask each
        other.
      stream: a function that creates the collectives with which workers ask each other; by default
        a new stream of `collectives`.
      is_compared: whether each batch comes with a summary for `BatchComparison`; only for policies
        AUTO and DATA.

    Raises:
      ValueError: if the dataset is not batched.
    """
    others = collectives if in_step else LocalCollectives()
    if collectives.size * replicas == 1:
        return dataset
    dataset = _unwrap_options(dataset)
    if dataset in _sharded:
        if replicas == 1 or _is_per_replica(dataset.element_spec):
            return dataset
        return _shard_batches(dataset, range(replicas), replicas)
    policy = dataset.options().experimental_distribute.auto_shard_policy
    _check_batched(dataset.element_spec)
    if policy in (_Policy.AUTO, _Policy.DATA):
        dataset = dataset.with_options(_deterministic_options())  # the same on all workers
        own = shard_batches(
            dataset, collectives.rank, collectives.size, replicas, with_fingerprint=is_compared
        )
        count = own.element_spec[0].shape[0] if is_compared else 0
        if policy != _Policy.DATA:
            own = equal_steps(own, others, stream=stream)
        own = add_summaries(own, count) if is_compared else own
        if policy == _Policy.DATA:
            return Epochs(own) if _ignores_state(dataset) else own
        return own
    if policy != _Policy.OFF:
        dataset = auto_shard_dataset(dataset, collectives.size, collectives.rank, collectives.size)
    own = _split_batches(dataset, collectives.size * replicas)
    return equal_steps(own, others, replicas, stream)


def shard_by(
    dataset: tf.data.Dataset, part: tf.Variable, replicas: int
) -> tf.data.Dataset | Epochs:
    """Returns the part of each global batch that a variable says when the batch is read.

    Nothing is read ahead beyond the end of an epoch, so the variable may change between epochs.

    Args:
      dataset: global batches, with the policy AUTO or DATA.
      part: a variable of a worker's place and the number of workers, int64, or `NO_PART`.
      replicas: the number of replicas of each worker.

    Raises:
      ValueError: if the dataset is not batched.
    """
    policy = dataset.options().experimental_distribute.auto_shard_policy
    _check_batched(dataset.element_spec)
    dataset = dataset.with_options(_deterministic_options())  # the same on all workers

    @without_autograph
    def take_parts(*batch: Any) -> Any:
        whole = element_of(dataset, batch)
        place, count = tf.unstack(part.read_value())
        indices = [place + number * count for number in range(replicas)]
        return _per_replica([_examples_of_part(whole, each, count * replicas) for each in indices])

    if may_prefetch(dataset):
        own = dataset.map(take_parts, num_parallel_calls=tf.data.AUTOTUNE)
        own = own.prefetch(tf.data.AUTOTUNE)
    else:
        own = dataset.map(take_parts)
    own = own.with_options(no_prefetch_options())
    return Epochs(own) if policy == _Policy.DATA and _ignores_state(dataset) else own


def is_divided(dataset: tf.data.Dataset) -> bool:
    """Returns whether workers divide a dataset's batches, and a shuffle may determine their order.

    Policy DATA states that batches are the same on all workers, so only datasets that Keras
    shuffles count.
    """
    policy = dataset.options().experimental_distribute.auto_shard_policy
    return policy == _Policy.AUTO or policy == _Policy.DATA and _ignores_state(dataset)


def _ignores_state(dataset: tf.data.Dataset) -> bool:
    # Keras sets this for data that it shuffles.
    state = dataset.options().experimental_external_state_policy
    return state == tf.data.experimental.ExternalStatePolicy.IGNORE


def _is_per_replica(spec: Any) -> bool:
    return any(isinstance(leaf, PerReplicaSpec) for leaf in tf.nest.flatten(spec))


def equal_steps(
    dataset: tf.data.Dataset,
    collectives: Collectives,
    replicas: int = 1,
    stream: Callable[[], Collectives] | None = None,
) -> tf.data.Dataset:
    """Pads a worker's batches with empty ones, up to the number of the worker that has the most.

    If a worker has several replicas, they take the batches in turn.

    Raises:
      ValueError: if some workers' datasets are infinite and others' are not.
    """
    if replicas > 1:
        dataset = _group_by_replica(dataset, replicas)
    if collectives.size == 1:
        return dataset
    own = int(dataset.cardinality())
    # With parameter servers, a worker that has ended sends no count, so positions are not ranks.
    counts = collectives.all_gather(tf.constant([own], tf.int64)).numpy().tolist()
    infinite = [rank for rank, count in enumerate(counts) if count == tf.data.INFINITE_CARDINALITY]
    if infinite and len(infinite) < len(counts):
        raise ValueError(
            "The datasets of all workers must be finite, or all infinite. Received: an infinite "
            f"dataset on worker {infinite[0]}, but not on all others; steps by rank: {counts}. "
            "Call repeat() on all of them, or take(n) on all."
        )
    if infinite or len(set(counts)) == 1 and counts[0] >= 0:
        return dataset
    if min(counts) >= 0:
        sizes = common_sizes(dataset, collectives) if 0 in counts else None
        padded = append_empty(dataset, max(counts) - own, sizes)
        return padded.map(without_autograph(lambda _, batch: batch))
    return _until_all_are_done(dataset, (stream or collectives.new_stream)())


def shard_batches(
    dataset: tf.data.Dataset,
    rank: int,
    size: int,
    replicas: int,
    with_fingerprint: bool = False,
) -> tf.data.Dataset:
    """Returns the examples of each batch that belong to the replicas of one of `size` workers.

    With a fingerprint, an element is a pair of the global batch's fingerprint and these examples.
    """
    if size * replicas == 1:
        return dataset
    _check_batched(dataset.element_spec)
    parts = range(rank, size * replicas, size)
    return _shard_batches(dataset, parts, size * replicas, with_fingerprint)


def _shard_batches(
    dataset: tf.data.Dataset, parts: range, size: int, with_fingerprint: bool = False
) -> tf.data.Dataset:
    """Slices each batch to the examples of the replicas in `parts`, out of `size` replicas."""

    @without_autograph
    def take_parts(*batch: Any) -> Any:
        whole = element_of(dataset, batch)
        examples = _per_replica([_examples_of_part(whole, index, size) for index in parts])
        return (fingerprint(whole), examples) if with_fingerprint else examples

    if not may_prefetch(dataset):
        return dataset.map(take_parts)
    return dataset.map(take_parts, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def _group_by_replica(dataset: tf.data.Dataset, replicas: int) -> tf.data.Dataset:
    """Groups batches into elements with one batch per replica; pads the last with empty ones."""
    count = dataset.cardinality()
    padded = append_empty(dataset, replicas - 1).map(without_autograph(lambda _, batch: batch))
    windows = padded.window(replicas, drop_remainder=True)

    @without_autograph
    def stack_batches(*window: Any) -> Any:
        batches = tf.data.Dataset.zip(element_of(windows, window))
        parts = [batches.skip(n).take(1).get_single_element() for n in range(replicas)]
        return _per_replica(parts)

    groups = windows.map(stack_batches)
    if count < 0:
        return groups
    return groups.apply(tf.data.experimental.assert_cardinality(-(-count // replicas)))


def _per_replica(parts: list[Any]) -> Any:
    """Returns the `PerReplica` value of several replicas, or the value of a single one."""
    if len(parts) == 1:
        return parts[0]
    return tf.nest.map_structure(lambda *values: PerReplica(values), *parts)


def _split_batches(dataset: tf.data.Dataset, size: int) -> tf.data.Dataset:
    """Splits each batch into `size` consecutive smaller ones."""

    @without_autograph
    def parts(*batch: Any) -> tf.data.Dataset:
        indices = tf.data.Dataset.range(size)
        return indices.map(
            without_autograph(
                lambda index: _examples_of_part(element_of(dataset, batch), index, size)
            )
        )

    count = dataset.cardinality()
    split = dataset.flat_map(parts)
    if count == tf.data.UNKNOWN_CARDINALITY:
        return split
    infinite = count == tf.data.INFINITE_CARDINALITY
    return split.apply(tf.data.experimental.assert_cardinality(count if infinite else count * size))


def _examples_of_part(batch: Any, index: int | tf.Tensor, size: int | tf.Tensor) -> Any:
    """Returns the examples of part `index` of a batch that is split evenly into `size` parts."""
    leaves = tf.nest.flatten(batch)
    count = count_examples(leaves[0])
    start, stop = part_bounds(count, tf.cast(index, tf.int64), size, tf.minimum)
    rule = "All components of a batch must have the same number of examples. Received:"
    checks = [
        assert_in_step(count_examples(leaf) == count, [rule, count, count_examples(leaf)])
        for leaf in leaves[1:]
    ]
    with tf.control_dependencies(checks):
        return tf.nest.map_structure(lambda value: _slice(value, start, stop), batch)


def _slice(value: Any, start: tf.Tensor, stop: tf.Tensor) -> Any:
    if isinstance(value, tf.SparseTensor):
        shape = value.dense_shape
        starts = tf.concat([[start], tf.zeros_like(shape[1:])], 0)
        return tf.sparse.slice(value, starts, tf.concat([[stop - start], shape[1:]], 0))
    return value[start:stop]


def _check_batched(spec: Any) -> None:
    counts = set()
    for component in tf.nest.flatten(spec):
        shape = getattr(component, "shape", tf.TensorShape(None))
        if shape.rank is not None:
            counts.add(shape[0] if shape.rank else 0)
    counts.discard(None)
    if len(counts) > 1 or counts == {0}:
        raise ValueError(
            "A dataset to distribute must yield batches: the first dimension of each component "
            f"must be the number of examples. Received: elements of {spec}. Call .batch(...) with "
            "the global batch size."
        )


def _until_all_are_done(dataset: tf.data.Dataset, stream: Collectives) -> tf.data.Dataset:
    """Pads with empty batches until no worker has examples; asks the others before each step."""
    spec = dataset.element_spec
    flagged = append_empty(dataset)
    if not has_unknown_sizes(spec):
        steps = flagged.take_while(
            without_autograph(lambda has, _: stream.all_reduce([tf.cast(has, tf.int32)])[0] > 0)
        )
        return steps.map(without_autograph(lambda _, batch: batch)).with_options(
            no_prefetch_options()
        )

    @without_autograph
    def ask_workers(has: tf.Tensor, batch: Any) -> tuple[tf.Tensor, Any]:
        """Gives a worker without a batch the inner sizes of another worker's."""
        own = tf.concat([[tf.cast(has, tf.int64)], inner_sizes(spec, batch)], 0)
        gathered = stream.all_gather(own[tf.newaxis])
        existing = tf.boolean_mask(gathered[:, 1:], gathered[:, 0] > 0)
        sizes = tf.concat([existing, own[tf.newaxis, 1:]], 0)[0]
        return tf.shape(existing)[0] > 0, batch_or_empty(spec, has, batch, sizes)

    steps = flagged.map(ask_workers).take_while(without_autograph(lambda has, _: has))
    # All workers must ask equally often; see [Note: read equally far] in bounded_prefetch.py.
    return steps.map(without_autograph(lambda _, batch: batch)).with_options(no_prefetch_options())


def _deterministic_options() -> tf.data.Options:
    options = tf.data.Options()
    options.deterministic = True
    return options


def no_prefetch_options() -> tf.data.Options:
    """Returns options under which no batch is prefetched.

    See [Note: read equally far] in bounded_prefetch.py.
    """
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    options.experimental_optimization.map_parallelization = False
    return options
