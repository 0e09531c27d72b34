"""Synchronous training on the devices of one process, with the variables on one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from strategies.collectives import LocalCollectives
from strategies.compat.keras import optimizer_of
from strategies.compat.tensorflow import (
    UpdateContext,
    canonicalize,
    select_replica,
    update_regroup,
)
from strategies.core.extended import ReplicatedExtended
from strategies.mirrored import ReplicatedStrategy, resolve_devices, validate_devices
from strategies.reduction import ReductionOptions
from strategies.utils.devices import HOST
from strategies.variables.on_read_variable import keep_state_per_replica
from strategies.variables.optimizer_traits import update_without_xla
from strategies.variables.row_variable import RowVariable
from strategies.variables.scalars import MirroredVariable
from strategies.variables.unsynchronized_state import is_unsynchronized_state


class CentralStorageStrategy(ReplicatedStrategy, tf.distribute.MirroredStrategy):
    """Synchronous training on all devices of this process, with the variables on one device.

    Each compute device runs a replica, which reads the variables from the device that holds them
    and computes on its examples of the batch. Gradients are summed on the device that holds the
    variables, which makes one update per step. So only the host's memory has to hold the whole
    model, and the optimizer's slot variables take no memory on the compute devices.

    Use it like `tf.distribute.experimental.CentralStorageStrategy`, with Keras 3 or tf_keras:

    >>> strategy = CentralStorageStrategy()
    >>> with strategy.scope():
    ...     variable = tf.Variable(1.0)
    >>> variable.device
    '/job:localhost/replica:0/task:0/device:CPU:0'

    A variable of which each replica holds a part, such as the sum of a metric, is on the replicas'
    own devices. A variable without an aggregation that the replicas write, such as a moving
    average of an optimizer, takes the first replica's value: once per step, as on one device.

    Args:
      compute_devices: the devices of the replicas, such as `["GPU:0", "GPU:1"]`. None means all
        GPUs, or the CPU.
      parameter_device: the device that holds the variables. None means the host's memory.
      num_replicas: the number of replicas, instead of `compute_devices`. Each replica uses a GPU,
        or a logical CPU if there are no GPUs. Logical CPUs can only be created before TensorFlow
        is initialized, so create the strategy first.

    Raises:
      ValueError: if there are not enough devices, if a device is named twice or does not exist, or
        if both `compute_devices` and `num_replicas` are given.
    """

    def __init__(
        self,
        compute_devices: Sequence[str] | None = None,
        parameter_device: str | None = None,
        *,
        num_replicas: int | None = None,
    ):
        compute_devices = resolve_devices(compute_devices, num_replicas, "compute_devices")
        holder = HOST if parameter_device is None else validate_devices([parameter_device])[0]
        # Stock's MirroredStrategy is a base class because tf_keras checks for it where it scales
        # gradients. Its constructor is not called.
        extended = CentralStorageExtended(self, compute_devices, canonicalize(holder))
        tf.distribute.Strategy.__init__(self, extended)


class CentralVariable(MirroredVariable):
    """A variable that all replicas share and update once."""

    def _update_replica(self, update_fn: Callable[..., Any], value: Any, **kwargs: Any) -> Any:
        if self.aggregation != tf.VariableAggregation.NONE:
            return super()._update_replica(update_fn, value, **kwargs)
        extended = self.distribute_strategy.extended
        options = {"kwargs": kwargs, "group": False}
        return extended._replica_ctx_update(self, update_fn, (value,), **options)  # noqa: SLF001


class CentralStorageExtended(ReplicatedExtended):
    """Implementation of `CentralStorageStrategy`: mirrored, with one copy of each variable.

    Args:
      strategy: the strategy that this object implements.
      devices: the devices of the replicas.
      holder: the device that holds the variables.
    """

    def __init__(self, strategy: tf.distribute.Strategy, devices: Sequence[str], holder: str):
        # Sums are needed on one device only; NCCL leaves them on all devices.
        local = tf.distribute.ReductionToOneDevice(reduce_to_device=holder)
        super().__init__(strategy, LocalCollectives(), devices, ReductionOptions(), local=local)
        self._holder = holder

    def _use_merge_call(self) -> bool:
        # Without a merge call, each replica would update the one variable.
        return len(self._devices) > 1

    def _create_variable(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        """Creates one variable for all replicas, where a mirrored strategy has a copy on each.

        See [Note: kinds of variables] in core/extended.py for the other kinds.
        """
        kwargs = keep_state_per_replica(kwargs)
        if not _is_shared(kwargs):
            return super()._create_variable(next_creator, **kwargs)
        created: list[Any] = []

        # Called once per device, for the copy on that device.
        def create_once(**kwargs: Any) -> Any:
            if not created:
                with tf.device(self._holder):
                    created.append(next_creator(**kwargs))
            return created[0]

        variable = super()._create_variable(create_once, **kwargs)
        if len(self._devices) == 1 or not isinstance(variable, MirroredVariable):
            return variable
        return CentralVariable(self._container_strategy(), variable.values, variable.aggregation)

    def _update(self, var: Any, fn: Callable[..., Any], args: Any, kwargs: Any, group: bool) -> Any:
        if isinstance(var, RowVariable) or len(set(map(id, var.values))) > 1:
            return super()._update(var, fn, args, kwargs, group)
        update_without_xla(optimizer_of(fn))
        with tf.device(self._holder), UpdateContext(0):
            updated = fn(var.values[0], *select_replica(0, args), **select_replica(0, kwargs))
        return update_regroup(self, [updated] * len(self._devices), group)

    def _replica_ctx_update(
        self,
        var: Any,
        fn: Callable[..., Any],
        args: Any = (),
        kwargs: Any = None,
        group: bool = True,
    ) -> Any:
        update_without_xla(optimizer_of(fn))
        if not isinstance(var, CentralVariable) or not self.is_inside_branch():
            return super()._replica_ctx_update(var, fn, args, kwargs, group)
        if self.local_replica() > 0:
            return var.values[0]
        with tf.device(self._holder):
            return fn(var.values[0], *args, **(kwargs or {}))

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """The device that holds the variables."""
        return (self._holder,)


def _is_shared(kwargs: dict[str, Any]) -> bool:
    """Returns whether all replicas share a variable; if not, each has its own copy.

    Replicas have their own copies of a variable that each of them writes by itself (ON_READ), and
    of one whose copies are neither summed nor averaged: an integer, such as the state of a seed
    generator. A float without an aggregation is a layer's state, which is averaged when written.
    """
    if kwargs.get("synchronization") == tf.VariableSynchronization.ON_READ:
        return False
    has_no_aggregation = (
        kwargs.get("aggregation") in (None, tf.VariableAggregation.NONE)
        and kwargs.get("trainable") is False
        and "colocate_with" not in kwargs
    )
    return not has_no_aggregation or is_unsynchronized_state(kwargs)
