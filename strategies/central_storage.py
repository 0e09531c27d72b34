"""Synchronous training on the devices of one process, with the variables on one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from strategies._keras import is_unsynchronized_state
from strategies._tensorflow import (
    MirroredVariable,
    UpdateContext,
    canonicalize,
    select_replica,
    update_regroup,
)
from strategies.collectives import LocalCollectives
from strategies.core.extended import ReplicatedExtended
from strategies.mirrored import MirroredReduction, checked_devices, local_devices
from strategies.reduction import ReductionOptions
from strategies.variables.sparse_variable import SparseVariable

_HOST = "/device:CPU:0"


class CentralStorageStrategy(MirroredReduction, tf.distribute.MirroredStrategy):
    """Trains one model on all devices of this process, with its variables on one device.

    Each compute device has a replica, which reads the variables from where they are and computes
    on its rows of the batch. Gradients are summed on the device that holds the variables, and it
    makes one update a step. So a model need fit into the memory of the host alone, and the
    optimizer's state takes none on the compute devices.

    It is used as `tf.distribute.experimental.CentralStorageStrategy` is, with Keras 3 and
    tf_keras:

    >>> strategy = CentralStorageStrategy()
    >>> with strategy.scope():
    ...     variable = tf.Variable(1.0)
    >>> variable.device
    '/job:localhost/replica:0/task:0/device:CPU:0'

    What each replica has a part of, such as the sums of a metric, is on its own device. A
    variable that names no aggregation and is written by the replicas, such as an optimizer's
    moving averages, takes the first replica's value: once a step, as on one device.

    Args:
      compute_devices: the replicas' devices, such as `["GPU:0", "GPU:1"]`. None is all GPUs, or
        the CPU.
      parameter_device: the device that holds the variables. None is the host's memory.
      num_replicas: how many replicas there are, in place of `compute_devices`: each takes a GPU,
        or a logical CPU where there are no GPUs. Logical CPUs are made before TensorFlow starts
        up, so make the strategy first.

    Raises:
      ValueError: if there are not so many devices, one is named twice or is not there, or
        compute_devices and num_replicas are given.
    """

    def __init__(
        self,
        compute_devices: Sequence[str] | None = None,
        parameter_device: str | None = None,
        *,
        num_replicas: int | None = None,
    ):
        if compute_devices is not None and num_replicas is not None:
            raise ValueError(
                "Replicas are named by compute_devices or counted by num_replicas. Received: "
                "both. Leave out one."
            )
        if compute_devices is None:
            gpus = len(tf.config.list_physical_devices("GPU"))
            compute_devices = local_devices(num_replicas, range(gpus))
        else:
            compute_devices = checked_devices(compute_devices)
        holder = _HOST if parameter_device is None else checked_devices([parameter_device])[0]
        # The class is a mirrored one, for tf_keras asks for that where gradients are scaled.
        extended = CentralExtended(self, compute_devices, canonicalize(holder))
        tf.distribute.Strategy.__init__(self, extended)


class CentralVariable(MirroredVariable):
    """A variable that all replicas share and update together."""

    def _update_replica(self, update_fn: Callable[..., Any], value: Any, **kwargs: Any) -> Any:
        if self.aggregation != tf.VariableAggregation.NONE:
            return super()._update_replica(update_fn, value, **kwargs)
        extended = self.distribute_strategy.extended
        options = {"kwargs": kwargs, "group": False}
        return extended._replica_ctx_update(self, update_fn, (value,), **options)  # noqa: SLF001


class CentralExtended(ReplicatedExtended):
    """Implementation of `CentralStorageStrategy`: a mirrored one with one copy of each variable.

    Args:
      strategy: the strategy that this is the inside of.
      devices: the replicas'.
      holder: the device that holds the variables.
    """

    def __init__(self, strategy: tf.distribute.Strategy, devices: Sequence[str], holder: str):
        # Sums are wanted on one device, which NCCL's are not.
        local = tf.distribute.ReductionToOneDevice(reduce_to_device=holder)
        super().__init__(strategy, LocalCollectives(), devices, ReductionOptions(), local=local)
        self._holder = holder

    def _use_merge_call(self) -> bool:
        # Replicas that are not merged would each make the update of the one variable.
        return len(self._devices) > 1

    def _create_variable(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        if not _is_one_for_all(kwargs):
            return super()._create_variable(next_creator, **kwargs)
        made: list[Any] = []

        def create_once(**kwargs: Any) -> Any:
            if not made:
                with tf.device(self._holder):
                    made.append(next_creator(**kwargs))
            return made[0]

        variable = super()._create_variable(create_once, **kwargs)
        if len(self._devices) == 1 or not isinstance(variable, MirroredVariable):
            return variable
        return CentralVariable(self._container_strategy(), variable.values, variable.aggregation)

    def _update(self, var: Any, fn: Callable[..., Any], args: Any, kwargs: Any, group: bool) -> Any:
        if isinstance(var, SparseVariable) or len(set(map(id, var.values))) > 1:
            return super()._update(var, fn, args, kwargs, group)
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
        if not isinstance(var, CentralVariable) or not self._is_inside_branch():
            return super()._replica_ctx_update(var, fn, args, kwargs, group)
        if self.local_replica() > 0:
            return var.values[0]
        with tf.device(self._holder):
            return fn(var.values[0], *args, **(kwargs or {}))

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """The device that holds the variables."""
        return (self._holder,)


def _is_one_for_all(kwargs: dict[str, Any]) -> bool:
    """Returns whether all replicas share a variable; if not, each keeps a copy of its own."""
    if kwargs.get("synchronization") == tf.VariableSynchronization.ON_READ:
        return False
    is_written_apart = (
        kwargs.get("aggregation") in (None, tf.VariableAggregation.NONE)
        and kwargs.get("trainable") is False
        and "colocate_with" not in kwargs
    )
    return not is_written_apart or is_unsynchronized_state(kwargs)
