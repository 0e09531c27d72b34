"""Implementation of the parameter-server strategy: shared variables and their updates."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from strategies.collectives import Collectives, LocalCollectives
from strategies.collectives.ordered_calls import OrderedCalls
from strategies.compat.call_stack import innermost_self
from strategies.compat.keras import is_iterations, is_optimizer, optimizer_of, path_of
from strategies.compat.tensorflow import (
    ResourceVariable,
    UninitializedVariable,
    select_replica,
    set_container,
)
from strategies.core.extended import ReplicatedExtended
from strategies.data.bounded_prefetch import bound_prefetch
from strategies.data.distributed_dataset import ReplicaDataset, check_options
from strategies.data.sharding import equal_steps, shard_dataset
from strategies.profiling.spans import EXCHANGE, SpanStream
from strategies.ps.connection import (
    ServerConnection,
    ServerGroup,
    ServerUnavailableError,
)
from strategies.ps.elastic_input import elastic_dataset
from strategies.ps.embedding_rows import RemoteRowVariable, RowUpdate
from strategies.ps.input import ServerDataset
from strategies.ps.modes.base import Mode, NewValues
from strategies.ps.registry import RemoteVariable, VariableRegistry
from strategies.ps.server_program import StepProgram
from strategies.ps.updates import VariableUpdate, are_alive, update_if
from strategies.ps.variable_kinds import (
    VariableKind,
    check_aggregation,
    check_is_unconstrained,
    initial_value,
    is_assignment,
    normalize_state_arguments,
    variable_kind,
)
from strategies.ps.variables import (
    CounterVariable,
    LocalCounterVariable,
    LocalVariable,
    SharedVariable,
    SlotVariable,
    add,
    assign_copy,
    check_is_not_slot,
    local_copy,
    reject_assignment,
    reject_read,
)
from strategies.reduction import ReductionOptions
from strategies.utils.devices import HOST
from strategies.variables.on_read_variable import keep_state_per_replica
from strategies.variables.row_variable import RowVariable, requested_table


class ParameterServerExtended(ReplicatedExtended):
    """A mirrored strategy over one worker's replicas, whose variables are on the servers.

    [Note: the updates of a step]
    An optimizer updates variables one by one, but a server makes all updates of a step at once. So
    while a step is traced, updates are only recorded (`_record`), and all are sent together
    (`_flush`): when the optimizer increments its step counter, which it does last, and at the end
    of the step for variables that no optimizer has changed. In between, a worker's copy lacks the
    step's update, so it can be neither read nor assigned (`check_read`, `_record`). The recorded
    tensors must belong to one graph: an optimizer that updates in a branch of `tf.cond` would leave
    tensors of the branch behind (`_enter_graph`).

    Variables that the worker itself changes, because it has its own optimizer or because they are a
    layer's state, are changed immediately and recorded in `_touched`: at the end of the step, or
    when a local optimizer's exchange is due, the difference is sent to the servers.

    Args:
      strategy: the strategy that this object implements.
      workers: the collectives of all workers.
      devices: this worker's devices.
      options: how values are reduced over this worker's replicas.
      resolver: the value of the strategy's property `cluster_resolver`.
      servers: the servers that hold the variables.
      registry: the registry of the variables on the servers.
      update_mode: when updates are sent, and which values the worker's next step uses.
      calls: orders the requests to the servers, together with the operations of `workers`; see
        `OrderedCalls`.
      wire: the dtype in which float32 values are sent to the servers.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        workers: Collectives,
        devices: Sequence[str],
        options: ReductionOptions,
        resolver: tf.distribute.cluster_resolver.ClusterResolver | None,
        servers: ServerGroup,
        registry: VariableRegistry,
        update_mode: Mode,
        calls: OrderedCalls,
        wire: tf.DType = tf.float32,
    ):
        collectives = workers if update_mode.in_step else LocalCollectives()
        super().__init__(strategy, collectives, devices, options, resolver)
        self._is_chief = workers.rank == 0
        self.workers = workers
        self.servers = servers
        self.registry = registry
        self.update_mode = update_mode
        self._wire = wire
        self._calls = calls
        self._spans = SpanStream(EXCHANGE, self.in_step)
        self._running = 0
        self._updates: list[VariableUpdate] = []
        self._counts: list[tuple[CounterVariable, tf.Tensor]] = []
        self._touched: dict[int, SharedVariable] = {}
        self._recorded_in: Any = None
        self._programs: dict[Any, StepProgram] = {}
        self._shared_variables: list[weakref.ref[SharedVariable]] = []
        self.pushes: RemoteVariable = registry.add(
            "steps by worker", (servers.size,), tf.int64,
            lambda: np.zeros(servers.size, np.int64), is_counter=True,
        )  # fmt: skip
        self._steps_before = 0
        self._expect_restarts()

    def _expect_restarts(self) -> None:
        """Makes this worker report what is lost when a server is restarted in place."""
        for server in self.servers.servers:
            if server.restarts is not None:
                # A former process of this worker may have made steps.
                self.servers.acknowledged[server.number] = self._steps_on(server)
                server.restarts.add_listener(self, functools.partial(_report_loss, server=server))

    def _steps_on(self, server: ServerConnection) -> int:
        """Returns how many steps of this worker are in a server's state."""
        return int(self.registry.read_counter(self.pushes, server)[self.servers.rank])

    def begin_count(self) -> None:
        """Begins to count the steps of an epoch, for `leave`."""
        self._steps_before = self._steps_made()

    def _steps_made(self) -> int:
        # A server without a variable that a step trains does not count it.
        return max(map(self._steps_on, self.servers.servers))

    def leave(self) -> None:
        """Logs which examples nobody trains on because this worker leaves an elastic job."""
        presence = self.servers.presence
        if presence is None:
            return
        with contextlib.suppress(ServerUnavailableError, tf.errors.OpError):
            self.drain()
            if rest := presence.leave(self._steps_made() - self._steps_before):
                logging.warning("Worker %d %s.", self.servers.rank, rest)

    def report_loss(self, server: ServerConnection) -> None:
        """Logs how many of this worker's steps a server has lost that was restarted."""
        made, acknowledged = self._steps_on(server), self.servers.acknowledged[server.number]
        # There may be one more than was acknowledged, whose response was lost with the server.
        self.servers.acknowledged[server.number] = min(made, acknowledged)
        logging.warning(
            "ps %d has lost %d steps of this worker that were made since it had saved its state.",
            server.number, max(acknowledged - made, 0),
        )  # fmt: skip

    @property
    def in_step(self) -> bool:
        """Whether all workers take the same steps together."""
        return self.update_mode.in_step

    @property
    def is_joining(self) -> bool:
        """Whether this worker joins an elastic job, and does not meet the others yet."""
        presence = self.servers.presence
        return presence is not None and not presence.is_member

    def drain(self) -> None:
        """Waits until the servers have all updates of this worker."""
        self.update_mode.drain()

    def _use_merge_call(self) -> bool:
        # Without a merge call, each replica would send the update.
        return len(self._devices) > 1

    def _weights_of_replicas(self) -> list[tf.Tensor] | None:
        weights = super()._weights_of_replicas()
        if weights is None and self.in_step:
            # Means are taken over the workers that are present.
            return [tf.constant(1.0) for _ in self._devices]
        return weights

    @property
    def _may_lack_examples(self) -> bool:
        return self.workers.size * len(self._devices) > 1

    # Variables.

    def _create_variable(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        """Creates a variable on the servers with a copy on this worker, or on this worker only.

        The order matters, because a variable may fit several cases. A slot variable is where its
        variable is, but on the servers only if the optimizer runs there.
        """
        kwargs = keep_state_per_replica(
            kwargs if self.in_step else normalize_state_arguments(kwargs)
        )
        neighbour = kwargs.get("colocate_with")
        is_own = kwargs.get("synchronization") == tf.VariableSynchronization.ON_READ
        has_rows = isinstance(neighbour, RowVariable) or requested_table(kwargs) is not None
        if is_own or has_rows:
            return super()._create_variable(next_creator, **kwargs)
        if isinstance(neighbour, SharedVariable) and not self.update_mode.has_local_optimizer:
            with tf.init_scope():
                return self._create_slot(neighbour, kwargs)
        if neighbour is not None and not isinstance(neighbour, tf.Variable):
            return super()._create_variable(next_creator, **kwargs)
        kind = variable_kind(kwargs, self.update_mode.has_local_optimizer, self.in_step)
        if kind is VariableKind.LOCAL:
            local = super()._create_variable(next_creator, **kwargs)
            cls = LocalCounterVariable if is_iterations(kwargs) else LocalVariable
            return cls(local.distribute_strategy, local.values, local.aggregation)
        with tf.init_scope():
            return self._create_shared(kind, next_creator, kwargs)

    def _create_shared(
        self, kind: VariableKind, next_creator: Callable[..., Any], kwargs: dict[str, Any]
    ) -> Any:
        initial = initial_value(kwargs)
        name = kwargs.get("name") or "variable"
        remote = self.registry.add(
            name, initial.shape, tf.as_dtype(initial.dtype), lambda: initial,
            is_counter=kind is VariableKind.COUNTER, path=path_of(name),
            is_logged=kind is VariableKind.WEIGHT and not self.update_mode.has_local_optimizer,
        )  # fmt: skip
        # A worker that starts late, or is restarted, begins with the others' values.
        present = initial if remote.is_new else self.registry.read_slices(remote)
        kwargs = {**kwargs, "initial_value": tf.constant(present, remote.dtype)}
        copy = super()._create_variable(next_creator, **kwargs)
        cls = CounterVariable if kind is VariableKind.COUNTER else SharedVariable
        shared = cls(copy.distribute_strategy, copy.values, copy.aggregation)
        shared.remote, shared.kind, shared.base = remote, kind, None
        if kind is VariableKind.STATE or self.update_mode.has_local_optimizer:
            # The value that the copy and the servers last had in common.
            with tf.device(HOST):
                shared.base = ResourceVariable(present, trainable=False, dtype=remote.dtype)
        # Lets an optimizer find the variable to which a slice on a server belongs.
        for part in remote.parts:
            set_container(part, shared)
        self._shared_variables.append(weakref.ref(shared))
        return shared

    def _create_slot(self, neighbour: SharedVariable, kwargs: dict[str, Any]) -> SlotVariable:
        initial = initial_value(kwargs)
        remote = self.registry.add(
            kwargs.get("name") or "slot", initial.shape, tf.as_dtype(initial.dtype),
            lambda: initial, beside=neighbour.remote,
        )  # fmt: skip
        # TensorFlow's class needs a component. This one is never initialized and takes no memory.
        with tf.device(HOST):
            component = UninitializedVariable(
                trainable=False, shape=initial.shape, dtype=remote.dtype, name=kwargs.get("name")
            )
        slot = SlotVariable(self._container_strategy(), [component], tf.VariableAggregation.NONE)
        slot.remote, slot.registry = remote, self.registry
        return slot

    # The updates of a step.

    def is_stepping(self) -> bool:
        """Returns whether a step is running, whose updates are sent to the servers together."""
        return self._running > 0

    def _call_for_each_replica(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if isinstance(fn, tf.types.experimental.PolymorphicFunction):
            # Called again with the Python function, inside the trace that records the updates.
            return super()._call_for_each_replica(fn, args, kwargs)
        self._running += 1
        try:
            return super()._call_for_each_replica(fn, args, kwargs)
        except BaseException:
            # Otherwise the next step would send what this one has recorded.
            self._updates, self._counts, self._touched = [], [], {}
            raise
        finally:
            self._running -= 1

    def _call_in_step(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        result = super()._call_in_step(fn, args, kwargs)
        if self._running == 1 or len(self._devices) == 1:
            self._flush()
        return result

    def _update(self, var: Any, fn: Callable[..., Any], args: Any, kwargs: Any, group: bool) -> Any:
        check_is_not_slot(var)
        if not self._is_updated_on_servers(var):
            fn = self._change_of_copy(var, fn)
            result = super()._update(var, fn, args, kwargs, group)
            if isinstance(var, SharedVariable) and not self.is_stepping():
                self._write_through(var)
            return result
        if isinstance(var, SharedVariable) and tf.executing_eagerly() and not self.is_stepping():
            result = super()._update(var, fn, args, kwargs, group)
            self._write_through(var)
            return result
        self._record(var, fn, select_replica(0, (tuple(args), dict(kwargs))))
        if not self.is_stepping():
            self._flush()
        return var

    def _replica_ctx_update(
        self,
        var: Any,
        fn: Callable[..., Any],
        args: Any = (),
        kwargs: Any = None,
        group: bool = True,
    ) -> Any:
        if self._use_merge_call():
            return super()._replica_ctx_update(var, fn, args, kwargs, group)
        check_is_not_slot(var)
        if not self._is_updated_on_servers(var):
            fn = self._change_of_copy(var, fn)
            return super()._replica_ctx_update(var, fn, args, kwargs, group)
        self._record(var, fn, (tuple(args), dict(kwargs or {})))
        return var

    def assign_everywhere(
        self, var: SharedVariable, fn: Callable[..., Any], value: Any, kwargs: dict[str, Any]
    ) -> Any:
        """Assigns to a variable outside an optimizer's update."""
        in_replica = self.is_stepping() and not tf.distribute.in_cross_replica_context()
        if not in_replica:
            return var.update_copy(fn, value, **kwargs)
        if not self._is_updated_on_servers(var):
            self._touched[id(var)] = var
            return var.update_copy(self.skip_without_examples(fn), value, **kwargs)
        is_from_optimizer = innermost_self(is_optimizer) is not None
        if is_assignment(fn) and not self._is_recorded(var) and is_from_optimizer:
            # Weight decay such as Muon's, from a copy that may lack others' updates.
            return self._add(var, tf.cast(value, var.dtype) - local_copy(var))
        if self._use_merge_call():
            check_aggregation(var)
        elif var.aggregation == tf.VariableAggregation.NONE:
            self._record(var, fn, ((value,), {}))
            return var
        # TensorFlow aggregates the replicas' values, then updates the variable with the result.
        return var.update_copy(fn, value, **kwargs)

    def _add(self, var: SharedVariable, delta: Any) -> SharedVariable:
        """Adds a value, the same on all replicas, to a variable on the servers."""
        if self._use_merge_call() and not tf.distribute.in_cross_replica_context():
            context = tf.distribute.get_replica_context()
            return context.merge_call(lambda _, value: self._add(var, value), args=(delta,))
        self._record(var, add, ((select_replica(0, delta),), {}))
        return var

    def _has_examples(self) -> tf.Tensor | None:
        """Returns whether this worker has examples in a step; None if updates always run.

        In "sync", an update always runs, because a step is common to all workers.
        """
        weights = None if self.in_step else self._weights_of_replicas()
        if weights is None or any(tf.get_static_value(weight) for weight in weights):
            return None
        return tf.add_n(weights) > 0

    def skip_local_without_examples(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Returns an update of a variable that the worker itself trains, skipped without examples.

        Otherwise, momentum and weight decay would change the variable. With gradient accumulation,
        it is not skipped, because accumulated gradients may be due.
        """
        accumulated = getattr(innermost_self(is_optimizer), "gradient_accumulation_steps", None)
        return self.skip_without_examples(fn) if self.is_stepping() and accumulated is None else fn

    def skip_without_examples(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that updates a copy as `fn` does, but only if there are examples."""
        has_examples = self._has_examples()
        return fn if has_examples is None else update_if(has_examples, fn)

    def _is_updated_on_servers(self, var: Any) -> bool:
        """Returns whether the servers update a variable; otherwise, the worker does."""
        if not isinstance(var, SharedVariable):
            return isinstance(var, RemoteRowVariable)
        return not self.update_mode.has_local_optimizer and var.kind is not VariableKind.STATE

    def _change_of_copy(self, var: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function with which the worker itself updates a variable.

        In a step, also records that it changes the worker's copy, for the exchange at its end.
        """
        if not isinstance(var, SharedVariable):
            return fn
        if self.is_stepping():
            self._touched[id(var)] = var
        return self.skip_local_without_examples(fn)

    def _record(self, var: Any, fn: Callable[..., Any], args: Any) -> None:
        if not self._may_constrain():
            check_is_unconstrained(var, optimizer_of(fn))
        if self._is_recorded(var) and is_assignment(fn):
            reject_assignment(var)
        if isinstance(var, RemoteRowVariable):
            if self.precedes_rows(fn, args):
                var.defer(lambda: self._add_update(var, fn, args))
                return
            var.run_deferred()
        self._add_update(var, fn, args)

    def _add_update(self, var: Any, fn: Callable[..., Any], args: Any) -> None:
        self._enter_graph()
        cls = RowUpdate if isinstance(var, RemoteRowVariable) else VariableUpdate
        self._updates.append(cls(var, fn, args))

    def check_read(self, var: SharedVariable) -> None:
        """Checks that the step has not updated a variable on the servers whose copy is read."""
        if self._is_recorded(var):
            is_constraint = self._may_constrain() and innermost_self(is_optimizer) is not None
            self._flush() if is_constraint else reject_read(var)

    def _may_constrain(self) -> bool:
        """Returns whether optimizers may read new values in a step, to apply constraints to them.

        This requires that no other worker changes the variable in between, and that values are not
        sent as float16, which would round the new value.
        """
        return self.in_step and self._wire == tf.float32 and not self._use_merge_call()

    def _is_recorded(self, var: Any) -> bool:
        return any(update.variable is var for update in self._updates)

    def count_up(self, counter: CounterVariable, delta: Any) -> Any:
        """Adds to a counter and sends the recorded updates: optimizers increment it last."""
        if self._use_merge_call() and not tf.distribute.in_cross_replica_context():
            context = tf.distribute.get_replica_context()
            return context.merge_call(lambda _, value: self.count_up(counter, value), args=(delta,))
        self._enter_graph()
        delta = select_replica(0, delta)
        # See [Note: the updates of a step].
        self._counts.append((counter, tf.convert_to_tensor(delta, counter.dtype)))
        self._flush()
        return counter

    def _enter_graph(self) -> None:
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        if self._updates and graph is not self._recorded_in:
            self._updates = []
            raise ValueError(
                "An optimizer on parameter servers cannot make its updates inside a condition. "
                "Received: conditional updates, as with gradient_accumulation_steps, or tf_keras's "
                "LossScaleOptimizer with a constraint. Omit these, or use mode='geo', in which "
                "each worker has its own optimizer."
            )
        self._recorded_in = graph

    def _flush(self) -> None:
        """Sends the recorded updates; see [Note: the updates of a step]."""
        touched = list(self._touched.values())
        self._touched = {}
        updates, counts = self._updates, self._counts
        if not (updates or counts or touched):
            return
        self._enter_graph()
        self._updates, self._counts = [], []
        if self.update_mode.has_local_optimizer:
            if updates:  # updates of embedding rows, of which workers have no copy
                self._send(updates, [])
            if touched:
                self.update_mode.exchange(touched, lambda updates: self._send(updates, [])[1])
            return

        def send() -> tf.Tensor:
            self._exchange(updates, counts, touched)
            return tf.constant(True)

        has_examples = self._has_examples()
        if has_examples is None:
            send()
        else:
            tf.cond(has_examples, send, lambda: tf.constant(False))

    def _exchange(
        self,
        updates: Sequence[VariableUpdate],
        counts: Sequence[tuple[CounterVariable, tf.Tensor]],
        states: Sequence[SharedVariable],
    ) -> None:
        """Sends a step's updates and state changes, and assigns the new values to the copies."""
        changes = []
        for state in states:
            now = local_copy(state)
            changes.append(VariableUpdate(state, add, ((now - state.base,), {})))
            state.base.assign(now, read_value=False)
        fresh, new_values = self._send([*updates, *changes], counts)

        def assign_copies() -> tf.Tensor:
            for variable, value in new_values():
                assign_copy(variable, value)
                if variable.base is not None:
                    variable.base.assign(value, read_value=False)
            return tf.constant(True)

        tf.cond(fresh, assign_copies, lambda: tf.constant(False))

    def _send(
        self, updates: Sequence[VariableUpdate], counts: Sequence[tuple[CounterVariable, tf.Tensor]]
    ) -> tuple[tf.Tensor, NewValues]:
        """Sends updates; returns whether new values were pulled, and a function that returns them.

        Building a program takes much longer than a step, so a step that is retraced, for example
        for another input shape, reuses its program.
        """
        counters = [counter for counter, _ in counts]
        key = tuple(u.key for u in updates), tuple(counter.remote.name for counter in counters)
        if key not in self._programs:
            new = StepProgram(self.servers, updates, counters, self.pushes, self._wire)
            # Programs of deleted optimizers are dropped.
            self._programs = {k: v for k, v in self._programs.items() if are_alive(k[0])}
            self._programs[key] = new
        program = self._programs[key]
        dtypes = [dtype.as_numpy_dtype for dtype in program.dtypes]

        def deliver(*arrays: np.ndarray) -> list[Any]:
            vectors = self.update_mode.step(program, program.push_from(arrays))
            if vectors is None:
                return [False, *(np.zeros([0], dtype) for dtype in dtypes)]
            return [True, *vectors]

        with tf.device(HOST):
            tensors = program.pack(updates, [count for _, count in counts])
            fresh, *vectors = self.call_in_order(
                "updates", deliver, tensors, [tf.bool, *program.dtypes]
            )
        return tf.ensure_shape(fresh, []), functools.partial(program.unpack, vectors)

    def call_in_order(
        self,
        name: str,
        function: Callable[..., Any],
        tensors: Sequence[tf.Tensor],
        dtypes: Sequence[tf.DType],
    ) -> list[tf.Tensor]:
        """Returns the results of a request to the servers; requests are made in program order.

        Workers in step wait for one another in requests, so all must make them in the same order.

        Args:
          name: the name of the request in the timeline of the step.
          function: takes the tensors' values as arrays.
          tensors: the arguments.
          dtypes: the dtypes of the results.
        """
        return self._calls.call(
            lambda *arrays: self._spans.measure_call(name, lambda: function(*arrays)),
            tensors,
            dtypes,
        )

    def refresh(self) -> None:
        """Sets this worker's copies to the servers' values, read atomically from each server.

        Copies that a local optimizer trains belong to the worker and do not change.
        """
        self.drain()
        if self.update_mode.has_local_optimizer:
            return
        variables = [v for each in self._shared_variables if (v := each()) is not None]
        self.update_mode.forget_pulled()
        present = self.registry.read([variable.remote for variable in variables])
        for variable, value in zip(variables, present, strict=True):
            value = tf.constant(value, variable.dtype)
            assign_copy(variable, value, is_newest=True)
            if variable.base is not None:
                variable.base.assign(value)

    def _write_through(self, var: SharedVariable) -> None:
        """Writes the value of this worker's copy to the servers."""
        if not tf.executing_eagerly():
            return
        self.drain()
        self.update_mode.forget_pulled()
        value = local_copy(var)
        self.registry.write(var.remote, value.numpy())
        if var.base is not None:
            var.base.assign(value)

    # Input.

    def _make_input_context(self) -> tf.distribute.InputContext:
        return tf.distribute.InputContext(
            self.workers.size, self.workers.rank, self._num_replicas_in_sync
        )

    def _experimental_distribute_dataset(
        self, dataset: tf.data.Dataset, options: Any
    ) -> ReplicaDataset:
        dataset = bound_prefetch(dataset)
        if self.servers.presence is not None:
            check_options(options, per_replica=False)
            return elastic_dataset(
                dataset, self._container_strategy(), options, self.servers.presence
            )
        if self.in_step:
            part = super()._experimental_distribute_dataset(dataset, options)
        else:
            check_options(options, per_replica=False)
            shared = shard_dataset(dataset, self.workers, len(self._devices), in_step=False)
            part = ReplicaDataset(shared, self._container_strategy(), options)
        return ServerDataset(part, self._container_strategy(), source=dataset)

    def _distribute_datasets_from_function(
        self, dataset_fn: Callable[..., Any], options: Any
    ) -> ReplicaDataset:
        if self.servers.presence is not None:
            raise ValueError(
                "distribute_datasets_from_function cannot be used in a job with --workers MIN:MAX, "
                "because the examples of a worker that leaves could not be given to others. "
                "Received: a function. Pass the dataset of all workers to fit or to "
                "strategy.experimental_distribute_dataset."
            )
        if self.in_step:
            part = super()._distribute_datasets_from_function(dataset_fn, options)
        else:
            check_options(options, per_replica=False)
            dataset = dataset_fn(self._make_input_context())
            shared = equal_steps(dataset, LocalCollectives(), len(self._devices))
            part = ReplicaDataset(shared, self._container_strategy(), options)
        return ServerDataset(part, self._container_strategy())


def _report_loss(extended: ParameterServerExtended, age: float, server: ServerConnection) -> None:
    del age
    extended.report_loss(server)
