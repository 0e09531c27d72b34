"""Synchronous training on the devices of one process."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from strategies.collectives import LocalCollectives
from strategies.compat.tensorflow import canonicalize
from strategies.core.extended import ReplicatedExtended
from strategies.diagnostics.consistency import check_same_call
from strategies.reduction import ReductionOptions
from strategies.utils.gpus import count_gpus

# None stands for an unknown size, and for a shape of unknown rank.
_Shape = tuple[int | None, ...] | None


class ReplicatedStrategy(tf.distribute.Strategy):
    """Base class of all strategies of this package: `reduce`, `gather` and `print`."""

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of replicas, of all workers in step, whose gradients are summed."""
        self.extended.loss_reduction_check.note_read()
        self.extended.loss_logs.note_divided()
        return super().num_replicas_in_sync

    @tf.autograph.experimental.do_not_convert
    def reduce(self, reduce_op: Any, value: Any, axis: int | None = None) -> Any:
        """Returns the sum or mean of `value` over all replicas, and along `axis` if it is given.

        It extends `tf.distribute.Strategy.reduce` as Keras 3 requires:

        * Structures are reduced leaf by leaf.
        * If each replica's value is a scalar, as in logs, `axis` is ignored.
        * If values have no mean, because their shapes differ or they are not numbers, MEAN returns
          the first replica's value. Keras 3 reduces a batch in this way to learn its shapes.
        * For integers in a structure that are not scalars, MEAN also returns the first replica's
          value, so that the ids and labels of a batch stay integers.

        Args:
          reduce_op: `tf.distribute.ReduceOp.SUM` or `MEAN`, or their names.
          value: the result of `run`, a tensor of each worker, or a structure of these.
          axis: the dimension to also reduce in each replica's value; None reduces over replicas.
        """
        check_same_call(self.extended.collectives, "reduce", f"{reduce_op}, axis={axis}")
        is_batch = tf.nest.is_nested(value)
        return tf.nest.map_structure(
            lambda leaf: self._reduce_value(reduce_op, leaf, axis, is_batch), value
        )

    @tf.autograph.experimental.do_not_convert
    def gather(self, value: Any, axis: int) -> Any:
        """Returns all replicas' values joined along `axis`; see `tf.distribute.Strategy.gather`."""
        check_same_call(self.extended.collectives, "gather", f"axis={axis}")
        return super().gather(value, axis)

    def _reduce_value(self, reduce_op: Any, value: Any, axis: int | None, is_batch: bool) -> Any:
        is_mean = reduce_op in ("MEAN", "mean", tf.distribute.ReduceOp.MEAN)
        if not is_mean and self.extended.merged_logs.is_merged(value):
            return value
        leaves = self.experimental_local_results(value)
        shapes = {_shape_of(leaf) for leaf in leaves}
        if shapes == {()}:
            axis = None
        if is_mean and axis is None:
            is_integer = shapes != {()} and tf.as_dtype(leaves[0].dtype).is_integer
            has_mean = _is_number(leaves[0]) and not (is_batch and is_integer)
            if not has_mean or not self._have_one_shape(shapes):
                return leaves[0]
        return super().reduce(reduce_op, value, axis)

    def _have_one_shape(self, shapes: set[_Shape]) -> bool:
        """Returns whether all replicas' values have one shape; in a graph, those of this worker."""
        if shapes == {()} or not tf.executing_eagerly():
            return len(shapes) == 1
        # Workers must agree: parts of a batch may differ in shape, and a worker that reduced while
        # the others did not would wait forever.
        own = zlib.crc32(repr(sorted(map(repr, shapes))).encode())
        all_shapes = self.extended.collectives.all_gather(tf.constant([own], tf.int64))
        return len(shapes) == 1 and len(set(all_shapes.numpy().tolist())) == 1

    def print(self, *values: Any) -> None:
        """Prints `values` as `print` does, on the first worker only."""
        if self.extended.should_save_summary:
            print(*values, flush=True)


class MirroredStrategy(ReplicatedStrategy, tf.distribute.MirroredStrategy):
    """Synchronous training on all devices of this process, with mirrored variables.

    Use it like `tf.distribute.MirroredStrategy`, with Keras 3 or tf_keras. Without GPUs the
    replicas are on `num_replicas` logical CPUs (CPU_NUM in PaddlePaddle's Fluid):

    >>> strategy = MirroredStrategy(num_replicas=1)
    >>> strategy.num_replicas_in_sync
    1

    Args:
      devices: the devices of the replicas, such as `["GPU:0", "GPU:1"]`. None means all GPUs, or
        the CPU.
      cross_device_ops: the implementation of sums over the replicas. None means NCCL between GPUs,
        and on the CPU a sum on the first replica's device.
      num_replicas: the number of replicas, instead of `devices`. Each replica uses a GPU, or a
        logical CPU if there are no GPUs. Logical CPUs can only be created before TensorFlow is
        initialized, so create the strategy first.
      options: how gradients are reduced.

    Raises:
      ValueError: if there are not enough devices, if a device is named twice or does not exist, or
        if both `devices` and `num_replicas` are given.
    """

    def __init__(
        self,
        devices: Sequence[str] | None = None,
        cross_device_ops: tf.distribute.CrossDeviceOps | None = None,
        *,
        num_replicas: int | None = None,
        options: ReductionOptions | None = None,
    ):
        devices = resolve_devices(devices, num_replicas, "devices")
        options = ReductionOptions() if options is None else options
        extended = ReplicatedExtended(
            self, LocalCollectives(), devices, options, local=cross_device_ops
        )
        tf.distribute.Strategy.__init__(self, extended)


def resolve_devices(
    devices: Sequence[str] | None, num_replicas: int | None, argument: str
) -> list[str]:
    """Returns the devices of the replicas, from their names or their number.

    Args:
      devices: the names of the devices.
      num_replicas: the number of devices.
      argument: the name of the argument `devices`, for messages.

    Raises:
      ValueError: if both are given, or there are no such devices.
    """
    if devices is None:
        return local_devices(num_replicas, range(count_gpus()))
    if num_replicas is not None:
        raise ValueError(
            f"{argument} and num_replicas cannot be combined. Received: both. Leave out one of "
            "them."
        )
    return validate_devices(devices)


def local_devices(count: int | None, gpus: range) -> list[str]:
    """Returns the devices of this process's replicas: GPUs, or logical CPUs.

    Args:
      count: the number of devices; None means all of the GPUs, or one CPU.
      gpus: the numbers of the GPUs to use; logical CPUs are created if there are none.

    Raises:
      ValueError: if there are not enough devices.
    """
    count = (len(gpus) or 1) if count is None else count
    if count < 1:
        raise ValueError(f"num_replicas must be at least 1. Received: {count}.")
    if len(gpus):
        if count > len(gpus):
            raise ValueError(
                f"Each replica must have its own GPU. Received: {count} replicas, {len(gpus)} "
                "GPUs. Use fewer replicas, or hide the GPUs (CUDA_VISIBLE_DEVICES=-1) to use the "
                "CPU."
            )
        return [f"/device:GPU:{number}" for number in gpus[:count]]
    _make_logical_cpus(count)
    return [f"/device:CPU:{number}" for number in range(count)]


def validate_devices(devices: Sequence[str]) -> list[str]:
    """Returns the full names of the given devices.

    Raises:
      ValueError: if there are none, or if a device is named twice or does not exist.
    """
    existing = [canonicalize(device.name) for device in tf.config.list_logical_devices()]
    try:
        names = [canonicalize(device) for device in devices]
    except ValueError:
        names = []
    # A tf.function that replicas call is traced once for each device, so replicas that share a
    # device would all run the first one's trace.
    if not names or len(set(names)) < len(names) or not set(names) <= set(existing):
        raise ValueError(
            "Each replica must have its own device, and the device must exist. Received: "
            f"{list(devices)}; the devices are {', '.join(existing)}. Pass each device once, for "
            f'example "{existing[0]}"; without GPUs, num_replicas=2 creates two logical CPUs.'
        )
    return names


def _make_logical_cpus(count: int) -> None:
    (cpu, *_) = tf.config.list_physical_devices("CPU")
    existing = tf.config.get_logical_device_configuration(cpu)
    if existing is None and count > 1:
        logical = [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
        try:
            tf.config.set_logical_device_configuration(cpu, logical)
        except RuntimeError:
            existing = []
    if existing is not None and len(existing) < count:
        raise ValueError(
            "Logical CPUs must be created before TensorFlow is initialized. Received: a request "
            f"for {count}, but TensorFlow is already initialized with {max(len(existing), 1)}. "
            "Create the strategy before any tensor, or configure them with "
            "tf.config.set_logical_device_configuration."
        )


def _shape_of(value: Any) -> _Shape:
    """Returns the static shape of a value; None for one of unknown rank."""
    shape = tf.TensorShape(getattr(value, "shape", ()))
    return None if shape.rank is None else tuple(shape.as_list())


def _is_number(value: Any) -> bool:
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        return False
    dtype = getattr(value, "dtype", None)
    return dtype is None or dtype not in (tf.string, tf.bool, tf.variant, tf.resource)
