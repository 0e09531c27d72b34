"""The insides of the mirrored strategies: variables, replicas, reduction and input."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from strategies._tensorflow import (
    CheckpointInitialValue,
    CollectiveAllReduceExtended,
    canonicalize,
)
from strategies.collectives import Collectives
from strategies.input import ReplicaDataset, equal_steps, number_of_rows, share
from strategies.reduction import ReductionOptions, ReplicaCrossDeviceOps
from strategies.row_variable import RowVariable

# How Keras 3 names the scale of its LossScaleOptimizer, and we that of ours.
KERAS_LOSS_SCALE = "dynamic_scale"
AGREED_LOSS_SCALE = "agreed_dynamic_scale"


class ReplicatedExtended(CollectiveAllReduceExtended):
    """What a mirrored strategy does: stock's, with other collectives, input and initial values.

    Each worker is one process with one replica or more, each on a device of its own. Values are
    summed inside the process first, and then over the workers.

    Args:
      strategy: the strategy that this is the inside of.
      collectives: the workers.
      devices: this worker's, one for each of its replicas; as many on every worker.
      options: how values are reduced.
      resolver: what the strategy's property `cluster_resolver` returns.
      local: what sums over the replicas of one worker.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        collectives: Collectives,
        devices: Sequence[str],
        options: ReductionOptions,
        resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
        local: tf.distribute.CrossDeviceOps | None = None,
    ):
        # Not stock's constructor: it starts TensorFlow's own collectives. These are the
        # attributes that the methods inherited from it read.
        tf.compat.v1.distribute.StrategyExtended.__init__(self, strategy)
        self._collectives = collectives
        self._devices = tuple(canonicalize(device) for device in devices)
        self._cross_device_ops = ReplicaCrossDeviceOps(
            collectives, self._devices, options, self._weights_of_replicas, local
        )
        self._host_cross_device_ops = self._cross_device_ops
        self._communication_options = tf.distribute.experimental.CommunicationOptions()
        self._cluster_resolver = resolver
        self._task_type = None if resolver is None else resolver.task_type
        self._task_id = None if resolver is None else resolver.task_id
        self._num_workers = collectives.size
        self._num_devices_per_worker = len(self._devices)
        self._id_in_cluster = collectives.rank
        self._is_chief = collectives.rank == 0
        self._worker_device = canonicalize("/device:CPU:0")
        self._input_workers_devices = ((self._worker_device, self._devices),)
        self._cfer_fn_cache: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        self._use_var_policy = False
        # Tells tf_keras that a batch may be empty.
        self.experimental_enable_get_next_as_optional = True
        self._row_weights: dict[int, tf.Tensor] = {}
        self._weighted: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()

    def _use_merge_call(self) -> bool:
        # One replica a process has nobody to merge with; without merge_call gradients are
        # reduced inside tf.cond, loops and recomputed functions as well.
        return len(self._devices) > 1

    def _call_for_each_replica(self, fn: Callable, args: Any, kwargs: Any) -> Any:
        if isinstance(fn, tf.types.experimental.PolymorphicFunction):
            if fn not in self._weighted:
                self._weighted[fn] = fn._clone(
                    python_function=self._with_weight(fn.python_function)
                )
            fn = self._weighted[fn]
        else:
            fn = self._with_weight(fn)
        return super()._call_for_each_replica(fn, args, kwargs)

    def _with_weight(self, fn: Callable) -> Callable:
        """Returns `fn` with the weight of its replica's rows known while it runs."""

        def weighted(*args: Any, **kwargs: Any) -> Any:
            replica = self._local_replica()
            outer = self._row_weights.get(replica)
            self._row_weights[replica] = _row_weight((args, kwargs))
            try:
                return fn(*args, **kwargs)
            finally:
                if outer is None:
                    del self._row_weights[replica]
                else:
                    self._row_weights[replica] = outer

        return tf.__internal__.decorator.make_decorator(fn, weighted)

    def _local_replica(self) -> int:
        context = tf.distribute.get_replica_context()
        in_group = tf.get_static_value(context.replica_id_in_sync_group)
        return self._get_local_replica_id(int(in_group))

    def _weights_of_replicas(self) -> list[tf.Tensor] | None:
        """Returns what each replica's rows count for, None outside of a replica's function."""
        weights = [self._row_weights.get(replica) for replica in range(len(self._devices))]
        return None if any(weight is None for weight in weights) else weights

    def _replica_ctx_all_reduce(
        self, reduce_op: tf.distribute.ReduceOp, value: Any, options: Any = None
    ) -> Any:
        del options
        values = tf.nest.flatten(value)
        weight = self._row_weights.get(0)
        weights = None if weight is None else [weight]
        reduced = self._cross_device_ops.all_reduce(reduce_op, [values], weights)
        return tf.nest.pack_sequence_as(value, reduced)

    def _validate_colocate_with_variable(self, colocate_with_variable: Any) -> None:
        if not isinstance(colocate_with_variable, RowVariable):
            super()._validate_colocate_with_variable(colocate_with_variable)

    def _update(self, var: Any, fn: Callable, args: Any, kwargs: Any, group: bool) -> Any:
        if not isinstance(var, RowVariable):
            return super()._update(var, fn, args, kwargs, group)
        # All replicas of a worker have one table: it is updated once.
        args, kwargs = tf.nest.map_structure(self._first, (tuple(args), kwargs))
        with tf.device(self._worker_device):
            result = fn(var, *args, **kwargs)
        return tf.group(result) if group and result is not None else result

    def _replica_ctx_update(
        self, var: Any, fn: Callable, args: Any = (), kwargs: Any = None, group: bool = True
    ) -> Any:
        if not isinstance(var, RowVariable) or self._use_merge_call():
            return super()._replica_ctx_update(var, fn, args, kwargs, group)
        return self._update(var, fn, args, kwargs or {}, group)

    def _first(self, value: Any) -> Any:
        return self._local_results(value)[0]

    def _create_variable(self, next_creator: Callable, **kwargs: Any) -> Any:
        beside = kwargs.get("colocate_with")
        if isinstance(beside, RowVariable):
            return beside.make_slot(kwargs["name"], kwargs["initial_value"], kwargs.get("dtype"))
        first = tf.VariableAggregation.ONLY_FIRST_REPLICA
        if kwargs.get("name") in (KERAS_LOSS_SCALE, AGREED_LOSS_SCALE):
            self._check_loss_scale(kwargs["name"])
        elif _is_unsynchronized_state(kwargs):
            kwargs["aggregation"] = tf.VariableAggregation.MEAN
        elif kwargs.get("aggregation") == first and len(self._devices) == 1:
            # The only replica is the first one; said so, it may write inside tf.cond as well.
            kwargs["aggregation"] = tf.VariableAggregation.NONE
        return super()._create_variable(next_creator, **kwargs)

    def _check_loss_scale(self, name: str) -> None:
        if name == KERAS_LOSS_SCALE and self._num_workers > 1:
            raise ValueError(
                "Under mixed_float16 all workers skip a step together. Received: Keras's own "
                "LossScaleOptimizer, which decides on each worker alone. Compile the model with "
                "strategies.LossScaleOptimizer(optimizer), or use mixed_bfloat16."
            )

    def _get_variable_creator_initial_value(
        self, replica_id: int, device: str, primary_var: Any, **kwargs: Any
    ) -> Callable[[], tf.Tensor]:
        if replica_id > 0:
            return super()._get_variable_creator_initial_value(
                replica_id, device, primary_var, **kwargs
            )

        def initial_value() -> tf.Tensor:
            with tf.device(device):
                value = kwargs["initial_value"]
                value = value() if callable(value) else value
                if isinstance(value, CheckpointInitialValue):
                    value = value.wrapped_value
                value = tf.convert_to_tensor(value, dtype=kwargs.get("dtype"))
                return self._collectives.broadcast(value)

        return initial_value

    def _experimental_distribute_dataset(
        self, dataset: tf.data.Dataset, options: Any
    ) -> ReplicaDataset:
        _refuse_per_replica(options)
        shared = share(dataset, self._collectives, len(self._devices))
        return ReplicaDataset(shared, self._container_strategy())

    def _distribute_datasets_from_function(
        self, dataset_fn: Callable, options: Any
    ) -> ReplicaDataset:
        _refuse_per_replica(options)
        dataset = dataset_fn(self._make_input_context())
        shared = equal_steps(dataset, self._collectives, len(self._devices))
        return ReplicaDataset(shared, self._container_strategy())

    @property
    def _num_replicas_in_sync(self) -> int:
        return len(self._devices) * self._num_workers


def _row_weight(inputs: Any) -> tf.Tensor:
    """Returns 1 if a replica's inputs have rows, 0 if they are an empty batch."""
    for leaf in tf.nest.flatten(inputs):
        if isinstance(leaf, (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)) and leaf.shape.rank:
            if leaf.shape[0] is None:
                return tf.cast(number_of_rows(leaf) > 0, tf.float32)
            return tf.constant(1.0 if leaf.shape[0] else 0.0)
    return tf.constant(1.0)


def _is_unsynchronized_state(kwargs: Mapping[str, Any]) -> bool:
    """Whether a variable is a layer's own state that nothing else keeps the same on all workers.

    Slot variables are not: they are made beside a variable, and updated from reduced gradients.
    """
    return (
        kwargs.get("aggregation") in (None, tf.VariableAggregation.NONE)
        and kwargs.get("synchronization")
        in (None, tf.VariableSynchronization.AUTO, tf.VariableSynchronization.ON_WRITE)
        and kwargs.get("trainable") is False
        and "colocate_with" not in kwargs
        and _initial_dtype(kwargs).is_floating
    )


def _initial_dtype(kwargs: Mapping[str, Any]) -> tf.DType:
    if kwargs.get("dtype") is not None:
        return tf.as_dtype(kwargs["dtype"])
    value = kwargs["initial_value"]
    # What is only known once made is taken for an integer, which nothing averages.
    return tf.int64 if callable(value) else tf.convert_to_tensor(value).dtype


def _refuse_per_replica(options: tf.distribute.InputOptions | None) -> None:
    replication = tf.distribute.InputReplicationMode.PER_REPLICA
    if options is not None and options.experimental_replication_mode == replication:
        raise ValueError(
            "Workers of one replica have one input pipeline each. Received: "
            "InputReplicationMode.PER_REPLICA. Leave the option out."
        )
