"""Synchronous training on several workers, one replica each, started from TF_CONFIG alone."""

from __future__ import annotations

import os
import secrets
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from strategies._tensorflow import (
    CheckpointInitialValue,
    CollectiveAllReduceExtended,
    canonicalize,
    global_seed,
)
from strategies.collectives import Collectives, LocalCollectives
from strategies.input import WorkerDataset, equal_steps, number_of_rows, share
from strategies.reduction import WorkerCrossDeviceOps
from tf_config import ClusterConfigError, TFConfig
from tf_config.settings import START_TIMEOUT_SECONDS, START_TIMEOUT_VARIABLE


class MultiWorkerMirroredStrategy(tf.distribute.MultiWorkerMirroredStrategy):
    """Trains one model on all workers of TF_CONFIG: same variables, gradients summed by Horovod.

    Each worker computes on its rows of the batch; the gradients are summed over the workers and
    every worker makes the same update. The variables are the same bits on all workers, and N
    workers at a batch of B rows each follow one process at N*B. Without TF_CONFIG there is one
    worker, and Horovod is not needed.

    It is used as `tf.distribute.MultiWorkerMirroredStrategy` is, with Keras 3 and tf_keras:

    >>> import keras, numpy as np
    >>> strategy = MultiWorkerMirroredStrategy()
    >>> with strategy.scope():
    ...     model = keras.Sequential([keras.layers.Dense(1)])
    ...     model.compile("sgd", "mse")
    >>> history = model.fit(np.ones([8, 2]), np.ones([8, 1]), batch_size=4, verbose=0)
    >>> strategy.num_replicas_in_sync
    1

    * The batch size that Keras is given is that of all workers together.
    * Initial values are the first worker's, whatever the seeds of the others.
    * `fit` and `evaluate` give means over all workers, `predict` all rows, on every worker.
    * A float variable that is not trainable and names no aggregation, such as the moving mean
      of Keras 3's BatchNormalization, is averaged over the workers when it is written; a worker
      without rows in that step counts for nothing.
    * If no global seed is set, all workers get the same random one, for they must shuffle
      alike. Make the strategy before the dataset.

    Args:
      start_timeout: seconds to wait at the start for the other workers. None is what
        `tf-config run --start-timeout` says, or 300.

    Raises:
      ClusterConfigError: if TF_CONFIG is wrong or has tasks that this strategy has no use for.
      ImportError: if there are several workers and Horovod is not installed.
      TimeoutError: if a worker does not come in time; the message names it.
    """

    def __init__(self, *, start_timeout: float | None = None):
        config = TFConfig.from_env()
        collectives = _start(config, _timeout(start_timeout))
        # Not stock's constructor, which starts a server of TensorFlow's on the same port. The
        # class is stock's all the same: Keras asks for it to gather logs and predictions.
        tf.distribute.Strategy.__init__(self, _Extended(self, config, collectives))
        if collectives.size > 1:
            _share_seed(collectives)

    def reduce(self, reduce_op: Any, value: Any, axis: int | None = None) -> Any:
        """Returns the sum or mean of `value` over all replicas, and along `axis` if it is given.

        As in stock tf.distribute; but where each replica's value is a scalar, `axis` is of no
        meaning and passed over. Keras 3 asks so for its logs.

        Args:
          reduce_op: `tf.distribute.ReduceOp.SUM` or `MEAN`, or their names.
          value: what `run` returned, or a tensor that each worker has.
          axis: the dimension to reduce within each replica's value, None for none.
        """
        leaves = [leaf for item in tf.nest.flatten(value) for leaf in _local(self, item)]
        if all(getattr(leaf, "shape", ()) == () for leaf in leaves):
            axis = None
        return super().reduce(reduce_op, value, axis)

    def print(self, *values: Any) -> None:
        """Prints `values` as `print` does, on the first worker alone."""
        if self.extended.should_save_summary:
            print(*values, flush=True)


def from_tf_config() -> tf.distribute.Strategy:
    """Returns the strategy that fits TF_CONFIG: mirrored on its workers.

    Without TF_CONFIG that is one worker, so one script serves a laptop and a cluster.

    >>> from_tf_config().num_replicas_in_sync
    1

    Raises:
      ClusterConfigError: if TF_CONFIG is wrong, or names parameter servers.
    """
    return MultiWorkerMirroredStrategy()


class _Extended(CollectiveAllReduceExtended):
    """The insides of the strategy: stock's, with other collectives, input and initial values."""

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        config: TFConfig | None,
        collectives: Collectives,
    ):
        # Not stock's constructor: it starts TensorFlow's own collectives. These are the
        # attributes that the methods inherited from it read.
        tf.compat.v1.distribute.StrategyExtended.__init__(self, strategy)
        self._collectives = collectives
        self._cross_device_ops = WorkerCrossDeviceOps(collectives)
        self._host_cross_device_ops = self._cross_device_ops
        self._communication_options = tf.distribute.experimental.CommunicationOptions()
        self._cluster_resolver = _resolver(config)
        self._task_type = None if config is None else config.task.type
        self._task_id = None if config is None else config.task.index
        self._num_workers = collectives.size
        self._id_in_cluster = collectives.rank
        self._is_chief = collectives.rank == 0
        self._devices = (canonicalize(_device(config)),)
        self._worker_device = canonicalize("/device:CPU:0")
        self._input_workers_devices = ((self._worker_device, self._devices),)
        self._cfer_fn_cache: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        self._use_var_policy = False
        # Tells tf_keras that a batch may be empty.
        self.experimental_enable_get_next_as_optional = True
        self._row_weight: tf.Tensor | None = None
        self._weighted: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()

    def _use_merge_call(self) -> bool:
        # One replica a process has nobody to merge with; without merge_call gradients are
        # reduced inside tf.cond, loops and recomputed functions as well.
        return False

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
        """Returns `fn` with the weight of this replica's rows known while it runs."""

        def weighted(*args: Any, **kwargs: Any) -> Any:
            outer, self._row_weight = self._row_weight, _row_weight((args, kwargs))
            try:
                return fn(*args, **kwargs)
            finally:
                self._row_weight = outer

        return tf.__internal__.decorator.make_decorator(fn, weighted)

    def _replica_ctx_all_reduce(
        self, reduce_op: tf.distribute.ReduceOp, value: Any, options: Any = None
    ) -> Any:
        del options
        values = tf.nest.flatten(value)
        reduced = self._cross_device_ops.all_reduce(reduce_op, values, self._row_weight)
        return tf.nest.pack_sequence_as(value, reduced)

    def _create_variable(self, next_creator: Callable, **kwargs: Any) -> Any:
        if _is_unsynchronized_state(kwargs):
            kwargs["aggregation"] = tf.VariableAggregation.MEAN
        return super()._create_variable(next_creator, **kwargs)

    def _get_variable_creator_initial_value(
        self, replica_id: int, device: str, primary_var: Any, **kwargs: Any
    ) -> Callable[[], tf.Tensor]:
        del replica_id, primary_var  # one replica a worker

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
    ) -> WorkerDataset:
        _refuse_per_replica(options)
        return WorkerDataset(share(dataset, self._collectives), self._container_strategy())

    def _distribute_datasets_from_function(
        self, dataset_fn: Callable, options: Any
    ) -> WorkerDataset:
        _refuse_per_replica(options)
        dataset = equal_steps(dataset_fn(self._make_input_context()), self._collectives)
        return WorkerDataset(dataset, self._container_strategy())


def _start(config: TFConfig | None, timeout: float) -> Collectives:
    """Returns the collectives among the workers of `config`, all of them here."""
    if config is None:
        return LocalCollectives()
    if config.cluster.tasks("ps"):
        raise ClusterConfigError(
            "MultiWorkerMirroredStrategy has no use for parameter servers. Received: "
            f"{len(config.cluster.tasks('ps'))} in TF_CONFIG. Take 'ps' out of 'cluster'."
        )
    if config.task.type == "evaluator" or len(config.cluster.training_tasks) == 1:
        return LocalCollectives()
    tasks = config.cluster.training_tasks
    if [task.index for task in tasks if task.type == "worker"] != list(
        range(len(config.cluster.tasks("worker")))
    ):
        raise ClusterConfigError(
            "Every worker has to know all others. Received: a cluster with the tasks "
            f"{', '.join(map(str, tasks))}. Name the workers between them too."
        )
    from strategies.collectives.horovod import HorovodCollectives

    return HorovodCollectives.start(config.cluster, config.task, timeout)


def _timeout(seconds: float | None, environ: Mapping[str, str] = os.environ) -> float:
    given = (
        environ.get(START_TIMEOUT_VARIABLE, START_TIMEOUT_SECONDS) if seconds is None else seconds
    )
    try:
        value = float(given)
    except (TypeError, ValueError):
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError(
            f"A start timeout is a number of seconds above 0. Received: {given!r}. "
            f"Correct the argument start_timeout or the variable {START_TIMEOUT_VARIABLE}."
        )
    return value


def _resolver(config: TFConfig | None) -> tf.distribute.cluster_resolver.ClusterResolver:
    if config is None:
        return tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec({}))
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(config.cluster.to_dict()),
        task_type=config.task.type,
        task_id=config.task.index,
        environment=config.environment or "",
        rpc_layer=config.rpc_layer or "grpc",
    )


def _device(config: TFConfig | None) -> str:
    """Returns this worker's device: a GPU, shared out among the workers of a host, or the CPU."""
    gpus = len(tf.config.list_physical_devices("GPU"))
    if not gpus:
        return "/device:CPU:0"
    local_rank = 0
    if config is not None and config.task in config.cluster.training_tasks:
        tasks = config.cluster.training_tasks
        before = tasks[: tasks.index(config.task)]
        host = config.cluster.addresses[config.task].host
        local_rank = sum(config.cluster.addresses[task].host == host for task in before)
    return f"/device:GPU:{local_rank % gpus}"


def _share_seed(collectives: Collectives) -> None:
    seed = collectives.broadcast(tf.constant(secrets.randbelow(2**31)))
    if global_seed() is None:
        tf.random.set_seed(int(seed))
        logging.info("All workers use the random seed %d.", int(seed))


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


def _local(strategy: tf.distribute.Strategy, value: Any) -> tuple[Any, ...]:
    return strategy.experimental_local_results(value)


def _refuse_per_replica(options: tf.distribute.InputOptions | None) -> None:
    replication = tf.distribute.InputReplicationMode.PER_REPLICA
    if options is not None and options.experimental_replication_mode == replication:
        raise ValueError(
            "Workers of one replica have one input pipeline each. Received: "
            "InputReplicationMode.PER_REPLICA. Leave the option out."
        )
