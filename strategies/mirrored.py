"""Synchronous training on the devices of one process."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from strategies._tensorflow import canonicalize
from strategies.collectives import LocalCollectives
from strategies.collectives.health.agreement import agree
from strategies.core.extended import ReplicatedExtended
from strategies.reduction import ReductionOptions


class MirroredReduction(tf.distribute.Strategy):
    """Reduction and printing, as both mirrored strategies do them."""

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of replicas whose gradients are summed: on all devices of all workers."""
        self.extended.loss_scale.note()
        return super().num_replicas_in_sync

    def reduce(self, reduce_op: Any, value: Any, axis: int | None = None) -> Any:
        """Returns the sum or mean of `value` over all replicas, and along `axis` if it is given.

        As in stock tf.distribute, with what Keras 3 asks for beyond it: structures are reduced
        leaf by leaf; where each replica's value is a scalar, `axis` is of no meaning and passed
        over (its logs); and values that have no mean, for they differ in shape or are no numbers,
        are the first replica's (a batch, of which it wants to know the shapes). So are whole
        numbers with rows in a structure: ids and labels of a batch, which stay whole.

        Args:
          reduce_op: `tf.distribute.ReduceOp.SUM` or `MEAN`, or their names.
          value: what `run` returned, or a tensor that each worker has, or a structure of them.
          axis: the dimension to reduce within each replica's value, None for none.
        """
        agree(self.extended.collectives, "reduce", f"{reduce_op}, axis={axis}")
        is_batch = tf.nest.is_nested(value)
        return tf.nest.map_structure(
            lambda leaf: self._reduced(reduce_op, leaf, axis, is_batch), value
        )

    def gather(self, value: Any, axis: int) -> Any:
        """Returns all replicas' values joined along `axis`; see `tf.distribute.Strategy.gather`."""
        agree(self.extended.collectives, "gather", f"axis={axis}")
        return super().gather(value, axis)

    def _reduced(self, reduce_op: Any, value: Any, axis: int | None, is_batch: bool) -> Any:
        leaves = self.experimental_local_results(value)
        shapes = {tuple(getattr(leaf, "shape", ())) for leaf in leaves}
        if shapes == {()}:
            axis = None
        is_mean = reduce_op in ("MEAN", "mean", tf.distribute.ReduceOp.MEAN)
        if is_mean and axis is None:
            is_whole = shapes != {()} and tf.as_dtype(leaves[0].dtype).is_integer
            has_mean = _is_number(leaves[0]) and not (is_batch and is_whole)
            if not has_mean or not self._have_one_shape(shapes):
                return leaves[0]
        return super().reduce(reduce_op, value, axis)

    def _have_one_shape(self, shapes: set[tuple[Any, ...]]) -> bool:
        """Returns whether all replicas' values have one shape; in a graph, only this worker's."""
        if shapes == {()} or not tf.executing_eagerly():
            return len(shapes) == 1
        # The workers' parts of a batch may differ, and one that reduced alone would wait forever.
        mine = zlib.crc32(repr(sorted(shapes)).encode())
        all_shapes = self.extended.collectives.all_gather(tf.constant([mine], tf.int64))
        return len(shapes) == 1 and len(set(all_shapes.numpy().tolist())) == 1

    def print(self, *values: Any) -> None:
        """Prints `values` as `print` does, on the first worker only."""
        if self.extended.should_save_summary:
            print(*values, flush=True)


class MirroredStrategy(MirroredReduction, tf.distribute.MirroredStrategy):
    """Synchronous training on all devices of this process, with mirrored variables.

    It is used as `tf.distribute.MirroredStrategy` is, with Keras 3 and tf_keras. Without GPUs its
    replicas are logical CPUs, as many as are asked for (Fluid's CPU_NUM):

    >>> strategy = MirroredStrategy(num_replicas=1)
    >>> strategy.num_replicas_in_sync
    1

    Args:
      devices: the replicas' devices, such as `["GPU:0", "GPU:1"]`. None is all GPUs, or the CPU.
      cross_device_ops: what sums gradients over the replicas. None is NCCL between GPUs, and on
        the CPU a sum on the first replica's device.
      num_replicas: how many replicas there are, in place of `devices`: each takes a GPU, or a
        logical CPU where there are no GPUs. Logical CPUs are made before TensorFlow starts up,
        so make the strategy first.
      options: how gradients are reduced.

    Raises:
      ValueError: if there are not so many devices, one is named twice or is not there, or both
        arguments are given.
    """

    def __init__(
        self,
        devices: Sequence[str] | None = None,
        cross_device_ops: tf.distribute.CrossDeviceOps | None = None,
        *,
        num_replicas: int | None = None,
        options: ReductionOptions | None = None,
    ):
        if devices is not None and num_replicas is not None:
            raise ValueError(
                "Replicas are named by devices or counted by num_replicas. Received: both. "
                "Leave out one."
            )
        if devices is None:
            gpus = len(tf.config.list_physical_devices("GPU"))
            devices = local_devices(num_replicas, range(gpus))
        else:
            devices = checked_devices(devices)
        options = ReductionOptions() if options is None else options
        extended = ReplicatedExtended(
            self, LocalCollectives(), devices, options, local=cross_device_ops
        )
        tf.distribute.Strategy.__init__(self, extended)


def local_devices(count: int | None, gpus: range) -> list[str]:
    """Returns the devices of the replicas of this process: GPUs, or logical CPUs.

    Args:
      count: how many; None is all of the GPUs, or one CPU.
      gpus: the numbers of the GPUs to choose from; logical CPUs are made if there are none.

    Raises:
      ValueError: if there are not so many.
    """
    count = (len(gpus) or 1) if count is None else count
    if count < 1:
        raise ValueError(f"A worker has a replica or more. Received: {count}. Ask for 1.")
    if len(gpus):
        if count > len(gpus):
            raise ValueError(
                f"Each replica has a GPU of its own. Received: {count} replicas, {len(gpus)} GPUs. "
                "Ask for fewer, or hide the GPUs (CUDA_VISIBLE_DEVICES=-1) to use the CPU."
            )
        return [f"/device:GPU:{number}" for number in gpus[:count]]
    _make_logical_cpus(count)
    return [f"/device:CPU:{number}" for number in range(count)]


def checked_devices(devices: Sequence[str]) -> list[str]:
    """Returns the full names of devices that a user named.

    Raises:
      ValueError: if there are none, one is named twice, or TensorFlow has not got it.
    """
    known = [canonicalize(device.name) for device in tf.config.list_logical_devices()]
    try:
        found = [canonicalize(device) for device in devices]
    except ValueError:
        found = []
    # A tf.function that replicas call is traced once for each device, and so would be the first
    # replica's for all that share its device.
    if not found or len(set(found)) < len(found) or not set(found) <= set(known):
        raise ValueError(
            "Replicas are on devices that TensorFlow has, one on each. Received: "
            f"{list(devices)}; there are {', '.join(known)}. Name each once, such as "
            f'"{known[0]}"; with num_replicas=2 there are two logical CPUs where there are no GPUs.'
        )
    return found


def _make_logical_cpus(count: int) -> None:
    (cpu, *_) = tf.config.list_physical_devices("CPU")
    made = tf.config.get_logical_device_configuration(cpu)
    if made is None and count > 1:
        logical = [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
        try:
            tf.config.set_logical_device_configuration(cpu, logical)
        except RuntimeError:
            made = []
    if made is not None and len(made) < count:
        raise ValueError(
            "Logical CPUs are made before TensorFlow starts up. Received: a wish for "
            f"{count}, and there are {max(len(made), 1)} for good. Make the strategy before any "
            "tensor, or set them with tf.config.set_logical_device_configuration."
        )


def _is_number(value: Any) -> bool:
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        return False
    dtype = getattr(value, "dtype", None)
    return dtype is None or dtype not in (tf.string, tf.bool, tf.variant, tf.resource)
