"""Distributed datasets and their iterators: each replica's batches, on its own device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from strategies.collectives.workers import are_in_step, collectives_of
from strategies.compat.keras import is_building_model, restart_threads, running_method
from strategies.compat.tensorflow import (
    DistributedDataset,
    DistributedDatasetSpec,
    DistributedIterator,
    DistributedIteratorSpec,
    InputWorkers,
    PerReplica,
    canonicalize,
    dataset_inputs,
    distributed_spec,
    get_distributed_datasets_from_function,
    may_run_generator,
    replica_specs,
)
from strategies.data.elements import element_of, placeholder_element
from strategies.data.input_consistency import check_same_examples
from strategies.data.iterator_deletion import delete_in_background
from strategies.data.same_batches import SUMMARY_SPEC
from strategies.data.sharding import Epochs, may_prefetch
from strategies.diagnostics.calls import record_call
from strategies.diagnostics.consistency import check_same_call, spec_text
from strategies.diagnostics.waits import end_epoch
from strategies.files.file_locks import check_sole_writer
from strategies.profiling.spans import INPUT, SpanStream
from strategies.utils.devices import HOST

_Replication = tf.distribute.InputReplicationMode
_waits = SpanStream(INPUT)


class ReplicaIterator(DistributedIterator):
    """Iterator over a `ReplicaDataset`; each replica's batches are on the replica's device.

    Args:
      iterator: a `tf.data` iterator over tensors or `PerReplica` values.
      input_workers: the devices.
      element_spec: the `element_spec` of the iterator.
      strategy: the strategy that distributes the batches.
      options: the options that the user passed.
    """

    def __init__(
        self,
        iterator: tf.data.Iterator,
        input_workers: InputWorkers,
        element_spec: Any,
        strategy: tf.distribute.Strategy,
        options: tf.distribute.InputOptions | None = None,
    ):
        super().__init__(
            input_workers=input_workers,
            components=[iterator],
            element_spec=element_spec,
            strategy=strategy,
            options=options,
        )

    def get_next(self, name: str | None = None) -> Any:
        """Returns the next batches.

        Raises:
          ValueError: if it is called in a replica's function.
          tf.errors.OutOfRangeError: at the end of the dataset.
        """
        del name
        if tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context():
            raise ValueError(
                "A distributed iterator cannot be advanced inside the function passed to "
                "strategy.run. Received: a call from inside. Pass the batch as an argument: "
                "strategy.run(function, args=(next(iterator),))."
            )
        return self._place_on_device(
            self._take_batch(_waits.measure("next batch", self._iterators[0].get_next))
        )

    def get_next_as_optional(self) -> Any:
        """Returns the next batches as a `tf.experimental.Optional`, which is empty at the end."""
        following = _waits.measure("next batch", self._iterators[0].get_next_as_optional)
        optional = tf.experimental.Optional
        return tf.cond(
            following.has_value(),
            lambda: optional.from_value(
                self._place_on_device(self._take_batch(following.get_value()))
            ),
            lambda: optional.empty(self._element_spec),
        )

    def _take_batch(self, element: Any) -> Any:
        """Returns the batch of an element of the dataset."""
        return element

    def _place_on_device(self, element: Any) -> Any:
        devices = self._input_workers.compute_devices_for_worker(0)
        host = self._input_workers.worker_devices[0]
        if len(devices) == 1:
            return element if devices[0] == host else _on_device(element, devices[0])

        def parts(value: PerReplica) -> PerReplica:
            pairs = zip(value.values, devices, strict=True)
            return PerReplica([_on_device(part, device) for part, device in pairs])

        return tf.nest.map_structure(parts, element)

    @property
    def _type_spec(self) -> ReplicaIteratorSpec:
        return self._spec_class(
            self._input_workers, self._element_spec, self._strategy, self._options
        )

    @property
    def _spec_class(self) -> type[ReplicaIteratorSpec]:
        return ReplicaIteratorSpec


class ComparedIterator(ReplicaIterator):
    """Iterator over batches with summaries, which the strategy's `BatchComparison` compares."""

    def _take_batch(self, element: Any) -> Any:
        summary, batch = element
        # Compared here, where all workers take the same batch, and not in the pipelines, each of
        # which is a different number of batches ahead.
        return self._strategy.extended.batch_comparison.check_batch(summary, batch)

    @property
    def _spec_class(self) -> type[ReplicaIteratorSpec]:
        return ComparedIteratorSpec


class ReplicaIteratorSpec(DistributedIteratorSpec):
    """The `tf.TypeSpec` of a `ReplicaIterator`."""

    @property
    def value_type(self) -> type:
        """The class of iterators with this spec."""
        return ReplicaIterator

    @property
    def _component_specs(self) -> list[tf.TypeSpec]:
        return [tf.data.IteratorSpec(self._element_spec)]

    def _from_components(self, components: list[tf.data.Iterator]) -> ReplicaIterator:
        return self.value_type(
            components[0], self._input_workers, self._element_spec, self._strategy, self._options
        )


class ComparedIteratorSpec(ReplicaIteratorSpec):
    """The `tf.TypeSpec` of a `ComparedIterator`."""

    @property
    def value_type(self) -> type:
        """The class of iterators with this spec."""
        return ComparedIterator

    @property
    def _component_specs(self) -> list[tf.TypeSpec]:
        return [tf.data.IteratorSpec((SUMMARY_SPEC, self._element_spec))]


class ReplicaDataset(DistributedDataset):
    """A distributed dataset that yields the replicas' shards of the global batches.

    `shard_dataset` and `equal_steps` give the datasets of all workers the same number of steps. So,
    unlike the iterators of stock tf.distribute, an iterator need not ask the other workers before
    each step whether they are done.

    Each replica's batch is on the replica's device. Batches of dense numbers are prefetched to
    GPUs, unless the dataset must not be read ahead.

    Args:
      dataset: this worker's batches: tensors, or `PerReplica` values if it has several replicas.
      strategy: the strategy that distributes the batches.
      options: how batches are placed on the devices; checked by `check_options`.
      source: the dataset that each worker passed, if it must be the same on all.
      is_compared: whether each batch comes with a summary for the strategy's `BatchComparison`.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset | Epochs,
        strategy: tf.distribute.Strategy,
        options: tf.distribute.InputOptions | None = None,
        source: tf.data.Dataset | None = None,
        is_compared: bool = False,
    ):
        batches = dataset.one_epoch if isinstance(dataset, Epochs) else dataset
        if is_compared:
            batches = batches.map(tf.autograph.experimental.do_not_convert(lambda _, batch: batch))
        super().__init__(
            strategy.extended._input_workers_with_options(options),  # noqa: SLF001
            strategy,
            components=[batches],
            element_spec=distributed_spec(strategy, batches.element_spec),
            enable_get_next_as_optional=False,
            options=options,
        )
        self._dataset = dataset
        self._source = source
        self._is_compared = is_compared
        self._batch_spec = batches.element_spec

    def __iter__(self) -> DistributedIterator:
        if collectives_of(self._strategy).size > 1:
            check_sole_writer(are_in_step(self._strategy))
        # Before the iterator exists: workers that make different calls get an error here that names
        # the calls, instead of waiting in exchanges of their pipelines.
        self._check_same_steps()
        if tf.executing_eagerly() and not is_building_model():
            end_epoch()  # of the previous epoch, of this dataset or of another one
            if (
                running_method() != "fit"
            ):  # an evaluation, a prediction, or a loop of the user's own
                self._strategy.extended.average_states()
        restart_threads()
        if self._source is not None and tf.executing_eagerly():
            check_same_examples(self._source, self._strategy.extended.collectives)
            self._source = None  # its tensors do not change between epochs
        if tf.executing_eagerly() and is_building_model():
            batch = placeholder_element(self._batch_spec)
            if batch is not None:
                # Nothing is read; see [Note: read equally far] in bounded_prefetch.py. An iterator
                # over a shuffled dataset would also change the order of the next one.
                return self._iterator(tf.data.Dataset.from_tensors(batch), is_compared=False)
        if isinstance(self._dataset, Epochs) or not self._can_prefetch(self._dataset):
            return self._iterator(self._dataset)
        devices = self._input_workers.compute_devices_for_worker(0)
        if len(devices) > 1:
            return self._round_robin_iterator(self._dataset)
        size = 1 if self._options is None else self._options.experimental_per_replica_buffer_size
        fetched = tf.data.experimental.prefetch_to_device(devices[0], size)
        return self._iterator(self._dataset.apply(fetched))

    def _check_same_steps(self) -> None:
        """Checks that all workers start iterating over the same number of steps."""
        one = self._dataset.one_epoch if isinstance(self._dataset, Epochs) else self._dataset
        steps = int(one.cardinality()) if tf.executing_eagerly() else tf.data.UNKNOWN_CARDINALITY
        texts = {
            tf.data.UNKNOWN_CARDINALITY: "an unknown number of steps",
            tf.data.INFINITE_CARDINALITY: "endless steps",
        }
        detail = f"{texts.get(steps, f'{steps} steps')}, {spec_text(self._batch_spec)}"
        call = record_call() or "iteration over a distributed dataset"
        check_same_call(self._strategy.extended.collectives, call, detail)

    def _iterator(
        self, dataset: tf.data.Dataset | Epochs, is_compared: bool | None = None
    ) -> ReplicaIterator:
        with tf.device(self._input_workers.worker_devices[0]):
            iterator = iter(dataset)
        is_compared = self._is_compared if is_compared is None else is_compared
        replicas = (ComparedIterator if is_compared else ReplicaIterator)(
            iterator, self._input_workers, self.element_spec, self._strategy, self._options
        )
        # Not with a generator: while the old iterator is deleted in the background, the next one
        # already starts, and both would take batches from it.
        if tf.executing_eagerly() and not _may_have_generator(dataset):
            delete_in_background(iterator, owner=replicas)
        return replicas

    def _round_robin_iterator(self, dataset: tf.data.Dataset) -> DistributedIterator:
        """Returns TensorFlow's iterator, which assigns the batches to the replicas in turn."""
        if self._is_compared:
            # TensorFlow's iterator prefetches before a step takes a batch, so only the first batch
            # is compared at the same point of all workers' programs.
            compare = functools.partial(
                self._strategy.extended.batch_comparison.check_batch, first_only=True
            )
            dataset = dataset.map(tf.autograph.experimental.do_not_convert(compare))
        one_by_one = dataset.flat_map(
            tf.autograph.experimental.do_not_convert(
                lambda *batch: _one_by_one(element_of(dataset, batch))
            )
        )
        round_robin = DistributedDataset(
            self._input_workers,
            self._strategy,
            components=[one_by_one],
            element_spec=distributed_spec(self._strategy, one_by_one.element_spec),
            enable_get_next_as_optional=False,
            options=self._options,
        )
        return iter(round_robin)

    def _can_prefetch(self, dataset: tf.data.Dataset) -> bool:
        devices = self._input_workers.compute_devices_for_worker(0)
        return (
            # Logical CPUs share the host's memory.
            all("CPU" not in device for device in devices)
            and may_prefetch(dataset)
            and all(_is_dense(spec) for spec in tf.nest.flatten(dataset.element_spec))
        )

    @property
    def element_spec(self) -> Any:
        """The `tf.TypeSpec`s of this worker's batches."""
        return self._batch_spec

    @property
    def _type_spec(self) -> ReplicaDatasetSpec:
        return ReplicaDatasetSpec(
            self._input_workers, self._element_spec, self._strategy, self._options
        )


class ReplicaDatasetSpec(DistributedDatasetSpec):
    """The `tf.TypeSpec` of a `ReplicaDataset`."""

    @property
    def value_type(self) -> type:
        """The class of datasets with this spec."""
        return ReplicaDataset

    def _from_components(self, components: list[tf.data.Dataset]) -> ReplicaDataset:
        return ReplicaDataset(components[0], self._strategy, self._options)


def check_options(options: tf.distribute.InputOptions | None, per_replica: bool) -> None:
    """Checks the options of a distributed dataset, as stock tf.distribute does.

    Args:
      options: the options; None means the default ones.
      per_replica: whether each replica may have its own dataset.

    Raises:
      ValueError: if options contradict each other.
      NotImplementedError: if the options request a dataset per replica where that is not possible.
    """
    if options is None:
        return
    is_per_replica = options.experimental_replication_mode == _Replication.PER_REPLICA
    if options.experimental_place_dataset_on_device:
        if not is_per_replica:
            raise ValueError(
                "experimental_place_dataset_on_device=True requires "
                "InputReplicationMode.PER_REPLICA. Received: another replication mode. Set both, "
                "or neither."
            )
        if options.experimental_fetch_to_device:
            raise ValueError(
                "experimental_place_dataset_on_device=True requires "
                "experimental_fetch_to_device=False. Received: both. Set "
                "experimental_fetch_to_device=False."
            )
    if is_per_replica and not per_replica:
        raise NotImplementedError(
            "InputReplicationMode.PER_REPLICA can only be used with "
            "distribute_datasets_from_function, on one worker. Received: "
            "InputReplicationMode.PER_REPLICA. Omit the option."
        )


def per_replica_datasets(
    dataset_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset],
    strategy: tf.distribute.Strategy,
    options: tf.distribute.InputOptions,
) -> Any:
    """Returns a distributed dataset in which each replica of one worker has its own dataset.

    Args:
      dataset_fn: a function that creates a dataset for a `tf.distribute.InputContext`.
      strategy: the strategy that distributes the datasets.
      options: where the datasets are, and how their batches are placed on the devices.
    """
    devices = strategy.extended.worker_devices
    on_devices = options.experimental_place_dataset_on_device
    sources = devices if on_devices else [canonicalize(HOST, d) for d in devices]
    workers = InputWorkers([(one, (own,)) for one, own in zip(sources, devices, strict=True)])
    count = len(devices)
    contexts = [tf.distribute.InputContext(count, number, count) for number in range(count)]
    return get_distributed_datasets_from_function(dataset_fn, workers, contexts, strategy, options)


def _may_have_generator(dataset: tf.data.Dataset | Epochs) -> bool:
    """Returns whether a Python generator may yield batches of a dataset, as with a `PyDataset`."""
    if isinstance(dataset, Epochs):
        dataset = dataset.one_epoch
    return may_run_generator(dataset) or any(map(_may_have_generator, dataset_inputs(dataset)))


def _one_by_one(element: Any) -> tf.data.Dataset:
    """Returns a dataset of the replicas' batches, one after the other."""
    count = len(tf.nest.flatten(element)[0].values)
    parts = [
        tf.data.Dataset.from_tensors(tf.nest.map_structure(lambda v, n=n: v.values[n], element))
        for n in range(count)
    ]
    return functools.reduce(tf.data.Dataset.concatenate, parts)


def _on_device(value: Any, device: str) -> Any:
    """Returns a value placed on a device; strings stay on the host."""

    def place_on_device(tensor: tf.Tensor) -> tf.Tensor:
        return tensor if tensor.dtype == tf.string else tf.identity(tensor)

    with tf.device(device):
        return tf.nest.map_structure(place_on_device, value, expand_composites=True)


def _is_dense(spec: Any) -> bool:
    """Returns whether a component is a dense tensor other than strings, for all replicas."""
    specs = replica_specs(spec)
    return all(isinstance(one, tf.TensorSpec) and one.dtype != tf.string for one in specs)
