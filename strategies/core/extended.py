"""Implementation of mirrored strategies: variables, replicas, reduction and input."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from strategies.collectives import Collectives
from strategies.collectives.replica import ReplicaCollectives
from strategies.collectives.single_worker import in_single_worker_scope
from strategies.compat.keras import (
    LOSS_SCALE,
    SEED_STATE,
    optimizer_of,
    running_call,
    running_method,
)
from strategies.compat.keras_loss_scaling import agree_on_overflow, check_overflow_can_be_agreed
from strategies.compat.keras_steps import build_with_ragged, ragged_to_build, with_callers_seeds
from strategies.compat.tensorflow import (
    CheckpointInitialValue,
    CollectiveAllReduceExtended,
    SyncOnReadVariable,
    WhileBodyFuncGraph,
    autograph_artifact,
    canonicalize,
    function_of,
    is_of_running_function,
)
from strategies.compat.tensorflow import (
    MirroredVariable as StockMirroredVariable,
)
from strategies.core.loss_logs import LossLogs
from strategies.core.loss_reduction_check import LossReductionCheck
from strategies.core.merged_logs import MergedLogs
from strategies.core.operation_order import compute_before_exchanges
from strategies.core.replica_context import in_sharing_context
from strategies.core.replica_means import ReplicaMeans
from strategies.core.scope import (
    check_backend,
    check_same_outside,
    check_step,
    check_updated,
    explain_mixed_strategies,
)
from strategies.core.scope_use import note_creation, note_entered
from strategies.core.seeds import seed_state_creator, worker_seed_scope
from strategies.core.step_counter import StepCounter
from strategies.core.step_inputs import StepInputs
from strategies.data.bounded_prefetch import bound_prefetch
from strategies.data.distributed_dataset import ReplicaDataset, check_options, per_replica_datasets
from strategies.data.same_batches import BatchComparison
from strategies.data.same_order import in_common_order
from strategies.data.sharding import equal_steps, is_divided, shard_dataset, undo_sharding
from strategies.diagnostics.consistency import check_same_call
from strategies.diagnostics.metrics import are_reported
from strategies.diagnostics.progress import start_progress_reports
from strategies.reduction import ReductionOptions, ReplicaCrossDeviceOps
from strategies.reduction.xla import check_devices
from strategies.utils.devices import HOST
from strategies.variables.merged import mark_merged
from strategies.variables.on_read_variable import (
    ExamplesVariable,
    OnReadVariable,
    keep_state_per_replica,
)
from strategies.variables.optimizer_traits import update_without_xla
from strategies.variables.row_variable import (
    RowVariable,
    check_clips_no_global_norm,
    check_identifies_rows,
    requested_table,
)
from strategies.variables.scalars import MirroredVariable
from strategies.variables.sharded_optimizer_state import ShardedOptimizerState
from strategies.variables.unsynchronized_state import is_unsynchronized_state


class ReplicatedExtended(CollectiveAllReduceExtended):
    """Stock's mirrored strategy with other collectives, input and initial values.

    Each worker is one process with one or more replicas, each on its own device. Values are summed
    within the process first, and then over the workers.

    [Note: merged replicas]
    The replicas of a process run the same function in separate threads, one at a time. To exchange
    values, such as gradients to be summed, they call `merge_call`: each replica stops there, and a
    single function gets the values of all replicas. This works outside of branches, where all
    replicas add to one graph. Inside a `tf.cond`, each replica builds a branch of its own, a graph
    whose tensors the others cannot use. There, each replica calls collectives by itself
    (`ReplicaCollectives`), and whatever must happen once per worker is done by its first replica.
    So there are two code paths wherever replicas exchange values, and `_use_merge_call` selects
    one. A single replica always takes the second path.

    Args:
      strategy: the strategy that this object implements.
      collectives: the collectives of the workers.
      devices: the devices of this worker, one for each replica; the same number on every worker.
      options: how values are reduced.
      resolver: the value of the strategy's property `cluster_resolver`.
      local: the implementation of sums over the replicas of one worker.
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
        # Stock's constructor is not called, because it starts TensorFlow's own collectives. These
        # are the attributes that the inherited methods read.
        tf.compat.v1.distribute.StrategyExtended.__init__(self, strategy)
        self.collectives = collectives
        # Subclasses whose workers do not take their steps together have other `collectives`.
        self.workers = collectives
        self._devices = tuple(canonicalize(device) for device in devices)
        self._cross_device_ops = ReplicaCrossDeviceOps(
            collectives, self._devices, options, self._weights_of_replicas, local
        )
        self._options = options
        self._unmerged_ops: list[ReplicaCrossDeviceOps] = []
        self._host_cross_device_ops = self._cross_device_ops
        self._sharded_state: ShardedOptimizerState | None = None
        if options.mode == "reduce":
            self._sharded_state = ShardedOptimizerState(
                collectives, self._devices, options.split_above
            )
        self._communication_options = tf.distribute.experimental.CommunicationOptions()
        self._cluster_resolver = resolver
        self._task_type = None if resolver is None else resolver.task_type
        self._task_id = None if resolver is None else resolver.task_id
        self._num_workers = collectives.size
        self._num_devices_per_worker = len(self._devices)
        self._id_in_cluster = collectives.rank
        self._is_chief = collectives.rank == 0
        self._worker_device = canonicalize(HOST)
        self._input_workers_devices = ((self._worker_device, self._devices),)
        self._cfer_fn_cache: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._use_var_policy = False
        # Tells tf_keras that a batch may be empty.
        self.experimental_enable_get_next_as_optional = True
        self._input_weights: dict[int, tf.Tensor] = {}
        self._dataset_streams: dict[str, Collectives] = {}
        self.batch_comparison: BatchComparison | None = None
        self.loss_reduction_check, self.loss_logs = LossReductionCheck(), LossLogs()
        self._lifted: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._replica_means = ReplicaMeans()
        self.merged_logs = MergedLogs(collectives, len(self._devices))
        self._is_of_several_processes = resolver is not None
        self._step_counter: StepCounter | None = None
        if are_reported():
            self._step_counter = StepCounter()
            start_progress_reports()
        if resolver is not None:
            note_creation()
            start_progress_reports()

    @property
    def in_step(self) -> bool:
        """Whether all workers take the same steps together."""
        return True

    def drain(self) -> None:
        """Does nothing: without parameter servers, no updates are pending."""

    def refresh(self) -> None:
        """Does nothing: without parameter servers, variables are always up to date."""

    def _scope(self, strategy: tf.distribute.Strategy) -> Any:
        if self._is_of_several_processes:
            note_entered()
        check_backend(strategy)
        model, batch = ragged_to_build()
        if model is not None:
            with super()._scope(strategy):
                build_with_ragged(model, batch)
        return super()._scope(strategy)

    def _configure(self, *args: Any, **kwargs: Any) -> None:
        # tf_keras calls this for models that run in sessions.
        raise NotImplementedError(
            "Strategies require eager execution. Received: a model that runs in a session of "
            "TensorFlow 1, as after tf.compat.v1.disable_eager_execution(). Remove that call; fit "
            "and tf.function run as graphs in any case."
        )

    def _use_merge_call(self) -> bool:
        # See [Note: merged replicas].
        return len(self._devices) > 1 and not self.is_inside_branch()

    def is_inside_branch(self) -> bool:
        """Returns whether a replica is in a graph nested in its function's, such as a `tf.cond`'s.

        Loops do not count: the replicas' loops may differ in their number of iterations, so that
        TensorFlow's operations would not match; there, merge_call raises an error.
        """
        own = getattr(threading.current_thread(), "graph", None)
        graph = tf.compat.v1.get_default_graph()
        if own is None or tf.executing_eagerly() or graph is own:
            return False
        while graph is not own:
            if isinstance(graph, WhileBodyFuncGraph):
                return False
            graph = getattr(graph, "outer_graph", own)
        return True

    def _ops_of_replica(self, replica: int) -> ReplicaCrossDeviceOps:
        """Returns the cross-device operations of one replica, for replicas that are not merged."""
        if len(self._devices) == 1:
            return self._cross_device_ops
        if not self._unmerged_ops:
            by_replica = ReplicaCollectives.for_all_replicas(self._devices, self.collectives)
            self._unmerged_ops = [
                ReplicaCrossDeviceOps(collectives, [device], self._options)
                for collectives, device in zip(by_replica, self._devices, strict=True)
            ]
        return self._unmerged_ops[replica]

    def _call_for_each_replica(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if isinstance(fn, tf.types.experimental.PolymorphicFunction):
            return self._lift_to_all_replicas(fn)(*args, **kwargs)
        seeded = with_callers_seeds(fn)
        if len(self._devices) > 1:
            seeded = in_sharing_context(seeded)
        with worker_seed_scope(self._id_in_cluster):
            # A nested call, such as Keras's update of weights, has other arguments; the examples
            # are still those of the step.
            if self._input_weights:
                results = self._call_in_step(seeded, args, kwargs)
            else:
                inputs = StepInputs(args, kwargs, self._devices)
                logs = self.loss_logs.step(fn, inputs, self.collectives)
                ordered = compute_before_exchanges(self._devices)
                with inputs.guard_effects(), ordered, self._input_weights_scope(inputs), logs:
                    results = self._call_in_step(seeded, args, kwargs)
        if len(self._devices) > 1 and not tf.executing_eagerly():
            check_devices()
        return results

    def _lift_to_all_replicas(self, fn: Any) -> Any:
        """Returns a `tf.function` in which all replicas call the Python function of `fn`."""
        if fn not in self._lifted:
            function = fn.python_function

            def call_in_all(*args: Any, **kwargs: Any) -> Any:
                return self._call_for_each_replica(function, args, kwargs)

            # AutoGraph must convert the function that replicas call, not its caller.
            self._lifted[fn] = function_of(fn, autograph_artifact(call_in_all))
        return self._lifted[fn]

    def _call_in_step(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Calls a step's function on each replica; subclasses add what must follow the calls."""
        return super()._call_for_each_replica(fn, args, kwargs)

    @contextlib.contextmanager
    def _input_weights_scope(self, inputs: StepInputs) -> Iterator[None]:
        """Sets the weights of the replicas' inputs while the block runs."""
        self._input_weights = inputs.weights()
        try:
            yield
        finally:
            self._input_weights = {}

    @property
    def _may_lack_examples(self) -> bool:
        """Whether a replica may have no examples in a step while others have some."""
        return self._num_replicas_in_sync > 1

    def input_weight(self) -> tf.Tensor | None:
        """Returns the weight of the calling replica's inputs: 0 or 1; None if it is not known."""
        weight = self._input_weights.get(self.local_replica())
        return weight if weight is None or is_of_running_function(weight) else None

    def local_replica(self) -> int:
        """Returns the number of the calling replica among the replicas of this worker."""
        context = tf.distribute.get_replica_context()
        in_group = tf.get_static_value(context.replica_id_in_sync_group)
        return self._get_local_replica_id(int(in_group))

    def _weights_of_replicas(self) -> list[tf.Tensor] | None:
        """Returns the weights of the replicas' inputs; None outside of a replica's function."""
        weights = [self._input_weights.get(replica) for replica in range(len(self._devices))]
        return None if any(weight is None for weight in weights) else weights

    def _replica_ctx_all_reduce(
        self, reduce_op: tf.distribute.ReduceOp, value: Any, options: Any = None
    ) -> Any:
        del options
        if self._use_merge_call():

            def reduce_together(_: Any, values: list[Any]) -> list[Any]:
                return self.batch_reduce_to(reduce_op, [(each, each) for each in values])

            context = tf.distribute.get_replica_context()
            reduced = context.merge_call(reduce_together, args=(tf.nest.flatten(value),))
            return mark_merged(tf.nest.pack_sequence_as(value, reduced))
        replica = self.local_replica()
        values = tf.nest.flatten(value)
        weight = self._input_weights.get(replica)
        weights = None if weight is None else [weight]
        reduced = self._ops_of_replica(replica).all_reduce(reduce_op, [values], weights)
        return mark_merged(tf.nest.pack_sequence_as(value, reduced))

    def _reduce_to(self, *args: Any) -> Any:
        reduced = super()._reduce_to(*args)
        mark_merged(self._local_results(reduced))
        return reduced

    def _batch_reduce_to(self, *args: Any) -> Any:
        reduced = super()._batch_reduce_to(*args)
        mark_merged([self._local_results(each) for each in reduced])
        return reduced

    def call_for_each_replica(
        self, fn: Callable[..., Any], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Runs `fn` on each replica; see `tf.distribute.Strategy.run`.

        Raises:
          ValueError: if `fn` is a step of a model that was created outside of the scope.
        """
        strategy = self._container_strategy()
        check_step(fn, strategy, is_summed=self._num_workers > 1)
        agreed = agree_on_overflow if self._num_replicas_in_sync > 1 else contextlib.nullcontext
        watched = self.loss_reduction_check.watch(fn, self._num_replicas_in_sync)
        # Not nested calls, whose arguments are no examples; see `_call_for_each_replica`.
        if self._step_counter is not None and not self._input_weights:
            self._step_counter.count(fn, StepInputs(args, kwargs or {}, self._devices))
        with explain_mixed_strategies(fn, strategy), agreed(strategy), watched:
            call = super().call_for_each_replica
            return self.merged_logs.run(fn, lambda step: call(step, args, kwargs))

    def update(
        self,
        var: Any,
        fn: Callable[..., Any],
        args: Any = (),
        kwargs: Any = None,
        group: bool = True,
    ) -> Any:
        """Updates a variable on all replicas; see `tf.distribute.StrategyExtended.update`.

        Raises:
          ValueError: if the variable was created outside of the strategy's scope.
        """
        check_updated(var, self._container_strategy())
        return super().update(var, fn, args, kwargs, group)

    def colocate_vars_with(self, colocate_with_variable: Any) -> Any:
        """Returns a scope that creates variables beside another one, such as slot variables.

        Raises:
          ValueError: if the variable was created outside of the strategy's scope.
        """
        check_updated(colocate_with_variable, self._container_strategy())
        return super().colocate_vars_with(colocate_with_variable)

    def _validate_colocate_with_variable(self, colocate_with_variable: Any) -> None:
        if not isinstance(colocate_with_variable, RowVariable):
            super()._validate_colocate_with_variable(colocate_with_variable)

    def _update_rows(self, var: RowVariable, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Updates this worker's rows of a table, which its replicas share."""
        optimizer = optimizer_of(fn)
        update_without_xla(optimizer)
        if args and self._num_replicas_in_sync > 1 and optimizer is not None:
            check_identifies_rows(self._first_local(args[0]), var)
        if args and self.collectives.size > 1:
            check_clips_no_global_norm(optimizer, var)
        # The gradient has been summed over all replicas, so all replicas have the same one.
        args, kwargs = tf.nest.map_structure(self._first_local, (tuple(args), dict(kwargs or {})))
        if self.precedes_rows(fn, args):
            var.defer(lambda: fn(var, *args, **kwargs))
            return None
        with tf.device(self._worker_device):
            var.run_deferred()
            return fn(var, *args, **kwargs)

    def precedes_rows(self, fn: Callable[..., Any], args: Sequence[Any]) -> bool:
        """Returns whether an optimizer changes a table before the step's rows are in its view."""
        return not args and len(self._devices) > 1 and optimizer_of(fn) is not None

    def _first_local(self, value: Any) -> Any:
        return self._local_results(value)[0]

    def _create_variable(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        """Creates a variable of the kind that its creation arguments imply.

        [Note: kinds of variables]
        Keras does not name a kind. It creates a variable with a name, a neighbour
        (`colocate_with`), an aggregation and a `trainable` flag. The kind follows from these, in
        this order:

        1. A table's variable already exists when Keras 3 creates a weight of its name.
        2. The state of a stateful RNN belongs to the replica's own examples.
        3. A slot variable of a table has rows, not the table's shape; its creator is never called.
        4. The state of a seed generator has a copy on each replica, which draws other numbers.
        5. The loss scale would be averaged by the next rule. This is not needed: all replicas
           decide together whether gradients have overflowed, and so change it alike.
        6. Other state that replicas write independently, such as a moving mean over the examples,
           is averaged over the replicas whenever it is written.
        7. A step counter takes the first replica's value.
        8. With mode "reduce", the slot variables of large variables are divided among replicas.
        9. All others are TensorFlow's: mirrored, or summed when read, such as metrics.
        """
        table = requested_table(kwargs)
        if table is not None:
            return table
        kwargs = keep_state_per_replica(kwargs)
        neighbour = kwargs.get("colocate_with")
        if isinstance(neighbour, RowVariable):
            return neighbour.make_slot(kwargs["name"], kwargs["initial_value"], kwargs.get("dtype"))
        if kwargs.get("name") == SEED_STATE:
            next_creator = seed_state_creator(self._id_in_cluster * len(self._devices))
        elif kwargs.get("name") == LOSS_SCALE:
            if self._num_replicas_in_sync > 1:
                check_overflow_can_be_agreed()
        elif is_unsynchronized_state(kwargs):
            kwargs["aggregation"] = tf.VariableAggregation.MEAN
        elif self._is_of_only_replica(kwargs):
            # Without an aggregation, it can be written inside a tf.cond, too.
            kwargs["aggregation"] = tf.VariableAggregation.NONE
        if self._sharded_state is not None:
            variable = self._sharded_state.new_state(
                next_creator, self._broadcast_initial_value, kwargs
            )
            if variable is not None:
                return variable
        stock = super()._create_variable(next_creator, **kwargs)
        if isinstance(stock, SyncOnReadVariable):
            on_read = ExamplesVariable if self._may_lack_examples else OnReadVariable
            own = on_read(stock.distribute_strategy, stock.values, stock.aggregation)
            self._replica_means.add(own)
            return own
        if type(stock) is StockMirroredVariable:
            return MirroredVariable(stock.distribute_strategy, stock.values, stock.aggregation)
        return stock

    def _is_of_only_replica(self, kwargs: Mapping[str, Any]) -> bool:
        """Returns whether a variable takes the first replica's value, and that is the only one."""
        first = tf.VariableAggregation.ONLY_FIRST_REPLICA
        is_on_read = kwargs.get("synchronization") == tf.VariableSynchronization.ON_READ
        return kwargs.get("aggregation") == first and len(self._devices) == 1 and not is_on_read

    def _get_variable_creator_initial_value(
        self, replica_id: int, device: str, primary_var: Any, **kwargs: Any
    ) -> Callable[[], tf.Tensor]:
        # The other replicas copy the first one's value.
        if replica_id > 0:
            return super()._get_variable_creator_initial_value(
                replica_id, device, primary_var, **kwargs
            )

        def initial_value() -> tf.Tensor:
            with tf.device(device):
                return self._broadcast_initial_value(kwargs["initial_value"], kwargs.get("dtype"))

        return initial_value

    def _broadcast_initial_value(self, value: Any, dtype: Any = None) -> tf.Tensor:
        """Returns the first worker's initial value of a variable, on all workers."""
        value = value() if callable(value) else value
        if isinstance(value, CheckpointInitialValue):
            value = value.wrapped_value
        value = tf.convert_to_tensor(value, dtype=dtype)
        # Keras creates variables when it saves a model, which the first worker may do by itself.
        if in_single_worker_scope():
            return value
        check_same_call(
            self.collectives, "creation of a variable", f"{value.dtype.name} {value.shape}"
        )
        return self.collectives.broadcast(value)

    def _update(self, var: Any, fn: Callable[..., Any], args: Any, kwargs: Any, group: bool) -> Any:
        if isinstance(var, RowVariable):
            result = self._update_rows(var, fn, args, kwargs)
            return tf.group(result) if group and result is not None else result
        if self._sharded_state is None or not self._sharded_state.can_update(var):
            return super()._update(var, fn, args, kwargs, group)
        return self._sharded_state.update(var, fn, args, kwargs)

    def _replica_ctx_update(
        self, var: Any, fn: Callable[..., Any], args: Any, kwargs: Any, group: bool
    ) -> Any:
        if isinstance(var, RowVariable) and not self._use_merge_call():
            # Each replica comes here, but the rows, which replicas share, must change only once.
            is_first = self.local_replica() == 0
            return self._update_rows(var, fn, args, kwargs) if is_first else None
        by_parts = self._sharded_state is not None and self._sharded_state.can_update(var)
        if self._sharded_state is None or not by_parts or self._use_merge_call():
            return super()._replica_ctx_update(var, fn, args, kwargs, group)
        replica = self.local_replica()
        collectives = self._ops_of_replica(replica).collectives
        return self._sharded_state.update_in_replica(var, replica, collectives, fn, args, kwargs)

    def _experimental_distribute_dataset(
        self, dataset: tf.data.Dataset, options: Any
    ) -> ReplicaDataset:
        check_options(options, per_replica=False)
        check_same_outside(running_call()[1], self.collectives)
        dataset = bound_prefetch(dataset)
        # The first batches can be compared only if each worker passes global batches, not if it
        # passes its own part of the data.
        source = dataset if undo_sharding(dataset) is dataset else None
        dataset = in_common_order(dataset, self.collectives)
        # Later batches are compared only in Keras's methods, in which all workers take each batch
        # together; a custom training loop may take them at any time.
        is_compared = self.collectives.size > 1 and running_method() is not None
        is_compared = is_compared and source is not None and is_divided(dataset)
        if is_compared and self.batch_comparison is None:
            self.batch_comparison = BatchComparison(self.collectives.new_stream())
        shared = shard_dataset(
            dataset,
            self.collectives,
            len(self._devices),
            stream=self._dataset_stream,
            is_compared=is_compared,
        )
        return ReplicaDataset(shared, self._container_strategy(), options, source, is_compared)

    def average_states(self) -> None:
        """Gives all replicas the mean of the state that each keeps until it is read.

        See [Note: state of evaluations] in replica_means.py. All workers must call it together.
        """
        self._replica_means.assign(self._cross_device_ops)

    def _dataset_stream(self) -> Collectives:
        """Returns the collectives for asking other workers whether they have examples left.

        All datasets of a Keras method, which iterates over one dataset at a time, share them,
        because the memory of new ones for each dataset would never be freed.
        """
        method = running_method()
        if method is None:
            return self.collectives.new_stream()
        if method not in self._dataset_streams:
            self._dataset_streams[method] = self.collectives.new_stream()
        return self._dataset_streams[method]

    def _distribute_datasets_from_function(
        self, dataset_fn: Callable[..., Any], options: Any
    ) -> Any:
        check_options(options, per_replica=self._num_workers == 1)
        each = tf.distribute.InputReplicationMode.PER_REPLICA
        if options is not None and options.experimental_replication_mode == each:
            return per_replica_datasets(dataset_fn, self._container_strategy(), options)
        dataset = dataset_fn(self._make_input_context())
        check_same_call(self.collectives, "distribution of a dataset")
        shared = equal_steps(dataset, self.collectives, len(self._devices))
        return ReplicaDataset(shared, self._container_strategy(), options)

    @property
    def _num_replicas_in_sync(self) -> int:
        return len(self._devices) * self._num_workers
