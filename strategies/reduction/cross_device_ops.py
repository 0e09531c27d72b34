"""Reduction, gathering and broadcast of a strategy's values, on top of the collectives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from strategies._tensorflow import DistributedValues, Mirrored, regroup
from strategies.collectives import Collectives


class WorkerCrossDeviceOps(tf.distribute.CrossDeviceOps):
    """A `tf.distribute.CrossDeviceOps` for workers that hold one replica each.

    This is the one place where a strategy's values leave the process, in a replica's context
    (Keras 3's optimizers) and in the cross-replica context (tf_keras, `strategy.reduce`) alike.

    Args:
      collectives: what moves the values.
    """

    def __init__(self, collectives: Collectives):
        super().__init__()
        self._collectives = collectives

    @property
    def _num_between_graph_workers(self) -> int:
        return self._collectives.size

    def all_reduce(
        self,
        reduce_op: tf.distribute.ReduceOp,
        values: Sequence[tf.Tensor | tf.IndexedSlices],
        weight: tf.Tensor | None = None,
    ) -> list[tf.Tensor | tf.IndexedSlices]:
        """Returns the sums or means of the workers' values, the same bits on each worker.

        `IndexedSlices` are gathered: the result holds all workers' rows, and is their sum.

        Args:
          reduce_op: SUM or MEAN.
          values: tensors of the same shapes on every worker, or `IndexedSlices`.
          weight: what this worker's values count for in a MEAN, a float32 scalar: 0 for a worker
            without rows, whose NaN and infinity (means over nothing) are 0 in a SUM as well.
            None counts each worker once.
        """
        mean = reduce_op == tf.distribute.ReduceOp.MEAN
        size = self._collectives.size
        values = _numbers(values, weight)
        if not mean:
            weight = None
        dense = [
            position
            for position, value in enumerate(values)
            if not isinstance(value, tf.IndexedSlices)
        ]
        results: list[tf.Tensor | tf.IndexedSlices] = list(values)
        sent = [_weighted(values[position], weight) for position in dense]
        if sent:
            received = self._collectives.all_reduce(sent + ([] if weight is None else [weight]))
            total = size if weight is None else received.pop()
            for position, value in zip(dense, received, strict=True):
                results[position] = _divided(value, total, size) if mean else value
        for position, value in enumerate(values):
            if isinstance(value, tf.IndexedSlices):
                results[position] = self._gather_slices(value, size if mean else None)
        return results

    def gather(self, value: tf.Tensor, axis: int) -> tf.Tensor:
        """Returns the workers' tensors joined along `axis`, by rank."""
        if axis == 0:
            return self._collectives.all_gather(value)
        order = tf.range(tf.rank(value))
        swapped = tf.tensor_scatter_nd_update(order, [[0], [axis]], [order[axis], 0])
        joined = self._collectives.all_gather(tf.transpose(value, swapped))
        return tf.transpose(joined, swapped)

    # The methods below are CrossDeviceOps' own, and not the `..._implementation` ones that it has
    # for subclasses: those are reached after checks of `destinations`, which the only replica of
    # a worker has no use for, and which refuse the arguments of a tf.function.

    def reduce(
        self,
        reduce_op: tf.distribute.ReduceOp,
        per_replica_value: Any,
        destinations: Any,
        options: Any = None,
    ) -> Any:
        """Returns the sum or mean over all workers."""
        del destinations, options
        return _as_mirrored(self.all_reduce(reduce_op, [_only(per_replica_value)])[0])

    def batch_reduce(
        self,
        reduce_op: tf.distribute.ReduceOp,
        value_destination_pairs: Iterable[tuple[Any, Any]],
        options: Any = None,
    ) -> list[Any]:
        """Returns the sums or means over all workers, moved together."""
        del options
        values = [_only(value) for value, _ in value_destination_pairs]
        return [_as_mirrored(value) for value in self.all_reduce(reduce_op, values)]

    def broadcast(self, tensor: Any, destinations: Any) -> Any:
        """Returns the tensor: from the first replica of this worker to its others.

        So it is in stock tf.distribute, where a variable with ONLY_FIRST_REPLICA (a counter of
        steps) does not leave the worker. Optimizers write one in every step.
        """
        del destinations
        return _as_mirrored(tf.convert_to_tensor(tensor))

    def _gather(
        self, per_replica_value: Any, destinations: Any, axis: int, options: Any = None
    ) -> Any:
        del destinations, options
        value = _only(per_replica_value)
        if isinstance(value, tf.IndexedSlices):
            raise NotImplementedError(
                "gather joins dense tensors. Received: IndexedSlices. "
                "Call tf.convert_to_tensor on it first."
            )
        return _as_mirrored(self.gather(value, axis))

    def _all_reduce(
        self, reduce_op: tf.distribute.ReduceOp, value: Any, replica_id: int, options: Any
    ) -> Any:
        del replica_id, options
        values = tf.nest.flatten(value)
        return tf.nest.pack_sequence_as(value, self.all_reduce(reduce_op, values))

    def _gather_slices(self, slices: tf.IndexedSlices, size: int | None) -> tf.IndexedSlices:
        values = self._collectives.all_gather(slices.values)
        indices = self._collectives.all_gather(slices.indices)
        if size is not None:
            values = values / size
        return tf.IndexedSlices(values, indices, slices.dense_shape)


def _numbers(
    values: Sequence[tf.Tensor | tf.IndexedSlices], weight: tf.Tensor | None
) -> Sequence[tf.Tensor | tf.IndexedSlices]:
    """Replaces what is not a number by 0 where the weight is 0."""
    if weight is None or tf.get_static_value(weight):
        return values

    def replaced(value: tf.Tensor | tf.IndexedSlices) -> tf.Tensor | tf.IndexedSlices:
        if isinstance(value, tf.IndexedSlices) or not value.dtype.is_floating:
            return value
        return tf.where(tf.math.is_finite(value), value, tf.zeros_like(value))

    values = [v if isinstance(v, tf.IndexedSlices) else tf.convert_to_tensor(v) for v in values]
    return tf.cond(weight > 0, lambda: values, lambda: [replaced(value) for value in values])


def _weighted(value: tf.Tensor, weight: tf.Tensor | None) -> tf.Tensor:
    value = tf.convert_to_tensor(value)
    if weight is None or not value.dtype.is_floating:
        return value
    return value * tf.cast(weight, value.dtype)


def _divided(value: tf.Tensor, total: int | tf.Tensor, size: int) -> tf.Tensor:
    if isinstance(total, int) or not value.dtype.is_floating:
        return value / size
    return value / tf.maximum(tf.cast(total, value.dtype), 1)


def _only(per_replica_value: Any) -> Any:
    if isinstance(per_replica_value, DistributedValues):
        (value,) = per_replica_value.values
        return value
    return per_replica_value


def _as_mirrored(value: Any) -> Any:
    return regroup((value,), wrap_class=Mirrored)
