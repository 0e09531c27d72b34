"""Optimizer state sharded over the replicas (ZeRO stage 1), for mode "reduce".

PaddlePaddle's Fluid calls this ReduceStrategy.Reduce, DeepSpeed ZeRO stage 1 (arXiv 1910.02054).
Each replica updates one part of each variable and holds only that part's optimizer state; the parts
of the variable are gathered afterwards. Each replica needs only the gradient sums of its own part,
but gradients are all-reduced, because Keras requests the sums before it names their variables. An
update runs on a part as described in [Note: an active view] in active_view.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from strategies.collectives import Collectives
from strategies.collectives.single_worker import in_single_worker_scope
from strategies.compat.call_stack import innermost_self
from strategies.compat.keras import (
    is_legacy,
    is_optimizer,
    is_written_outside_updates,
    optimizer_of,
)
from strategies.compat.tensorflow import UpdateContext, select_replica, unique_id
from strategies.variables.optimizer_traits import is_elementwise, update_without_xla
from strategies.variables.partitioned import Partition, PartitionedVariable, PartitionSpec, PartView

# Creation arguments of a slot variable that do not apply to its parts. Keras 3.16 passes the shape.
_OF_WHOLE = ("colocate_with", "aggregation", "shape")


class ShardedOptimizerState:
    """Sharded optimizer state of one strategy.

    Args:
      collectives: collectives among the workers.
      devices: devices of this worker, one for each replica.
      above: number of elements above which the state of a variable is sharded.
    """

    def __init__(self, collectives: Collectives, devices: Sequence[str], above: int):
        self._collectives = collectives
        self._devices = tuple(devices)
        self._above = above
        count = collectives.size * len(devices)
        self._count = count
        begin = collectives.rank * len(devices)
        self._numbers = range(begin, begin + len(devices))
        self._partitions: dict[str, Partition] = {}

    def new_state(
        self,
        next_creator: Callable[..., Any],
        first_value: Callable[[Any, Any], tf.Tensor],
        kwargs: Mapping[str, Any],
    ) -> PartitionedVariable | None:
        """Creates a sharded slot variable; returns None if the variable must not be sharded.

        Args:
          next_creator: function that creates a variable on the device in scope.
          first_value: function that returns an initial value, the same on all workers.
          kwargs: arguments of the variable that Keras requests.

        Raises:
          ValueError: if a legacy optimizer of tf_keras requests it.
        """
        neighbour = kwargs.get("colocate_with")
        if not self._is_sharded(neighbour) or is_written_outside_updates(kwargs["name"]):
            return None
        with tf.init_scope():
            value = first_value(kwargs["initial_value"], kwargs.get("dtype"))
        # State of another shape, such as Adafactor's means of rows, cannot be partitioned alike.
        if value.shape != kwargs["colocate_with"].shape:
            return None
        _prepare(innermost_self(is_optimizer))
        partition = self._partition_of(neighbour)
        options = {k: v for k, v in kwargs.items() if k not in _OF_WHOLE}
        parts = []
        for number, device in zip(partition.numbers, self._devices, strict=True):
            with tf.device(device):
                options["initial_value"] = _part_of(value, partition.spec, number)
                parts.append(next_creator(**options))
        return PartitionedVariable(parts, partition, kwargs["name"])

    def can_update(self, variable: Any) -> bool:
        """Returns whether a variable or its optimizer state is sharded."""
        return isinstance(variable, PartitionedVariable) or unique_id(variable) in self._partitions

    def update(
        self,
        variable: Any,
        update: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> None:
        """Updates a variable on all replicas of this worker.

        The step of an element-wise optimizer runs on each replica's part, and the whole is gathered
        afterwards. Any other function is called once, with the whole.

        Args:
          variable: variable for which `can_update` returns true.
          update: function of the variable and the arguments.
          args: positional arguments; gradients and other values of the variable's shape are
            partitioned like the variable.
          kwargs: keyword arguments.
        """
        if _is_elementwise_step(update, args, variable.shape):
            partition = self._partitions[unique_id(variable)]
            written = []
            for replica in range(len(self._devices)):
                with UpdateContext(replica):
                    written.append(self._part(variable, replica, update, args, kwargs))
            whole = partition.spec.concatenate_parts(partition.join(written))
            for component in variable.values:
                with tf.device(component.device):
                    component.assign(whole)
            return
        # Any other update, such as that of an optimizer that uses whole variables, is computed once
        # and copied, because each read of the whole sharded state is an exchange with all workers.
        components = [variable] if isinstance(variable, PartitionedVariable) else variable.values
        first, args, kwargs = select_replica(0, (components[0], tuple(args), dict(kwargs)))
        with tf.device(first.device), UpdateContext(0):
            update(first, *args, **kwargs)
        for component in components[1:]:
            with tf.device(component.device):
                component.assign(first)

    def update_in_replica(
        self,
        variable: Any,
        replica: int,
        collectives: Collectives,
        update: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> None:
        """Updates a variable on one replica, in that replica's own function; see `update`.

        Args:
          variable: variable for which `can_update` returns true.
          replica: number of the replica on this worker.
          collectives: collectives among all replicas.
          update: function of the variable and the arguments.
          args: positional arguments; gradients and other values of the variable's shape are
            partitioned like the variable.
          kwargs: keyword arguments.

        Raises:
          ValueError: if the optimizer is not element-wise and this worker has several replicas.
        """
        if _is_elementwise_step(update, args, variable.shape):
            part = self._part(variable, replica, update, args, kwargs)
            component = variable.values[replica]
            with tf.device(component.device):
                spec = self._partitions[unique_id(variable)].spec
                component.assign(spec.concatenate_parts(collectives.all_gather(part)))
        elif len(self._devices) > 1 and optimizer_of(update) is not None:
            raise ValueError(
                "With mode='reduce' and several replicas per process, an optimizer that runs "
                "inside tf.cond or a loop must be element-wise. Received: "
                f"{type(optimizer_of(update)).__name__} for {variable.name}. Use one replica per "
                "process, an element-wise optimizer, or mode='all_reduce'."
            )
        else:
            is_split = isinstance(variable, PartitionedVariable)
            component = variable if is_split else variable.values[replica]
            with tf.device(component.device):
                update(component, *args, **kwargs)

    def _part(
        self,
        variable: Any,
        replica: int,
        update: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> tf.Tensor:
        """Updates one replica's part of a variable; returns the new part."""
        partition = self._partitions[unique_id(variable)]
        number = partition.numbers[replica]
        part = PartView(variable.values[replica], partition.spec, number, unique_id(variable))
        sliced, named = select_replica(replica, (tuple(args), dict(kwargs)))
        sliced = [
            _part_of(v, partition.spec, number) if _has_shape(v, variable.shape) else v
            for v in sliced
        ]
        with tf.device(part.device), partition.show_part(number):
            update(part, *sliced, **named)
            return part.value()

    def _is_sharded(self, variable: Any) -> bool:
        return (
            self._count > 1
            and hasattr(variable, "values")
            and variable.trainable
            and variable.dtype.is_floating
            and variable.shape.is_fully_defined()
            and math.prod(variable.shape) > max(self._above, self._count)
        )

    def _partition_of(self, variable: Any) -> Partition:
        key = unique_id(variable)
        if key not in self._partitions:
            spec = PartitionSpec(tuple(variable.shape), self._count)
            self._partitions[key] = Partition(
                spec, self._numbers, self._join, self._select_written_parts
            )
        return self._partitions[key]

    def _join(self, parts: list[tf.Tensor]) -> tf.Tensor:
        if in_single_worker_scope():
            raise RuntimeError(
                "With mode='reduce' all workers must read the optimizer's state together. "
                "Received: a read by the first worker only. Save at the end of an epoch "
                "(save_freq='epoch'), or on all workers, with strategies.writing."
            )
        return self._collectives.all_gather(parts[0] if len(parts) == 1 else tf.concat(parts, 0))

    def _select_written_parts(self) -> Sequence[int]:
        """Returns the parts that an assignment writes; in a replica's function, only its own."""
        context = tf.distribute.get_replica_context()
        if len(self._devices) == 1 or context is None or not tf.distribute.has_strategy():
            return self._numbers
        return [int(tf.get_static_value(context.replica_id_in_sync_group))]


def _prepare(optimizer: Any) -> None:
    """Prepares an optimizer to update parts of variables; rejects legacy optimizers."""
    if is_legacy(optimizer):
        name = type(optimizer).__name__
        raise ValueError(
            "mode='reduce' cannot be used with a legacy optimizer, which writes to a variable's "
            f"memory directly. Received: tf_keras.optimizers.legacy.{name}. Use "
            f"tf_keras.optimizers.{name}, or mode='all_reduce'."
        )
    update_without_xla(optimizer)


def _part_of(value: Any, spec: PartitionSpec, number: int) -> Any:
    """Returns a copy of a part; a slice would share the memory of the whole and keep it alive."""
    part = spec.part(value, number)
    return part if isinstance(part, tf.IndexedSlices) else tf.raw_ops.DeepCopy(x=part)


def _has_shape(value: Any, shape: tf.TensorShape) -> bool:
    if isinstance(value, tf.IndexedSlices):
        return True
    return getattr(value, "shape", None) == shape


def _is_elementwise_step(
    update: Callable[..., Any], args: Sequence[Any], shape: tf.TensorShape
) -> bool:
    has_gradient = any(_has_shape(value, shape) for value in select_replica(0, tuple(args)))
    optimizer = optimizer_of(update) if has_gradient else None
    return optimizer is not None and is_elementwise(optimizer)
