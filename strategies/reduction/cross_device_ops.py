"""All-reduce, gather and broadcast of a strategy's values, built on the collectives."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from strategies.collectives import Collectives
from strategies.compat.tensorflow import (
    DistributedValues,
    Mirrored,
    PerReplica,
    regroup,
)
from strategies.reduction import sparse
from strategies.reduction.options import ReductionOptions
from strategies.reduction.xla import check_communication
from strategies.utils.devices import HOST
from strategies.utils.gpus import has_virtual_gpus

_LARGEST_RANK = 16  # of tensors that are gathered
_ANY, _NONE = -1, -2
_NCCL_DTYPES = (tf.float16, tf.float32, tf.float64)


class ReplicaCrossDeviceOps(tf.distribute.CrossDeviceOps):
    """Implementation of `tf.distribute.CrossDeviceOps` for workers with one or more replicas each.

    All reductions of a strategy go through this class, both in the replica context (Keras 3's
    optimizers) and in the cross-replica context (tf_keras, `strategy.reduce`). Values are summed
    over the replicas of the process first, then over the workers.

    [Note: replicas without examples]
    All replicas take every step, because each waits for the others in it. So at the end of the
    data, a replica may have a batch without examples. A mean over no examples is NaN, and would
    make the sum over all replicas NaN. The replica's weight is 0 in that step
    (`core/step_inputs.py`): values that are not finite become 0, and a MEAN does not include the
    replica. A SUM is not multiplied by the weight, because values that do not depend on examples,
    such as the gradient of a regularizer, count on every replica.

    Args:
      collectives: collectives among the workers.
      devices: devices of this worker's replicas.
      options: options of the reduction.
      weights: function that returns the weight of each replica's values; None if all are 1.
      local: implementation of sums over this worker's replicas. None uses NCCL between GPUs, and
        otherwise sums on one device.
    """

    def __init__(
        self,
        collectives: Collectives,
        devices: Sequence[str] = ("/device:CPU:0",),
        options: ReductionOptions = ReductionOptions(),  # noqa: B008  frozen
        weights: Callable[[], list[tf.Tensor] | None] = lambda: None,
        local: tf.distribute.CrossDeviceOps | None = None,
    ):
        super().__init__()
        self._collectives = collectives
        self._devices = tuple(devices)
        self._options = options
        self._weights = weights
        self._local = local or nccl_between(devices)

    @property
    def collectives(self) -> Collectives:
        """The collectives among the workers."""
        return self._collectives

    @property
    def _num_between_graph_workers(self) -> int:
        return self._collectives.size

    def all_reduce(
        self,
        reduce_op: tf.distribute.ReduceOp,
        replicas: Sequence[Sequence[tf.Tensor | tf.IndexedSlices]],
        weights: Sequence[tf.Tensor] | None = None,
    ) -> list[tf.Tensor | tf.IndexedSlices]:
        """Returns the sums or means over all replicas, bitwise identical on all workers.

        `IndexedSlices` are gathered: the result contains the rows of all replicas and represents
        their sum.

        Args:
          reduce_op: SUM or MEAN.
          replicas: values of each replica of this worker: tensors of the same shapes on every
            replica, or `IndexedSlices`.
          weights: weights of the replicas in a MEAN, float32 scalars: 0 or 1; see
            [Note: replicas without examples]. None weights all replicas equally.
        """
        check_communication(self._collectives)
        replicas = [[_as_tensors(value) for value in values] for values in replicas]
        # See [Note: marked gradients] in sparse.py. The tf.cond in `_finite_where_counted` returns
        # other tensors, without the marks, so marked gradients are removed before it.
        are_marked = [sparse.is_marked_reduced(value) for value in replicas[0]]
        unmarked = [
            [value for value, is_marked in zip(values, are_marked, strict=True) if not is_marked]
            for values in replicas
        ]
        others = iter(self._all_reduce_unmarked(reduce_op, unmarked, weights))
        return [
            sparse.sum_replicas(column) if is_marked else next(others)
            for column, is_marked in zip(zip(*replicas, strict=True), are_marked, strict=True)
        ]

    def _all_reduce_unmarked(
        self,
        reduce_op: tf.distribute.ReduceOp,
        replicas: Sequence[Sequence[tf.Tensor | tf.IndexedSlices]],
        weights: Sequence[tf.Tensor] | None,
    ) -> list[tf.Tensor | tf.IndexedSlices]:
        mean = reduce_op == tf.distribute.ReduceOp.MEAN
        size = self._collectives.size * len(replicas)
        replica_weights = [None] * len(replicas) if weights is None else list(weights)
        finite = []
        for values, weight, scope in zip(
            replicas, replica_weights, self._scopes(len(replicas)), strict=True
        ):
            with scope:
                finite.append(_finite_where_counted(values, weight))
        if not mean:
            replica_weights = [None] * len(replicas)
        # From here on, each column has one value of all replicas of this worker.
        columns = list(zip(*finite, strict=True))
        local_sums = self._local_sums(columns, replica_weights)
        sent = [
            self._to_dense(column) if summed is None else [_components(summed)[0]]
            for column, summed in zip(columns, local_sums, strict=True)
        ]
        is_weighted = mean and weights is not None
        to_reduce = [tensor for tensors in sent for tensor in tensors]
        to_reduce += [tf.add_n(replica_weights)] if is_weighted else []
        # Gradients are sums. A MEAN, such as that of a moving average, keeps its precision.
        is_half = self._options.compression == "fp16" and not mean and self._collectives.size > 1
        reduced = iter(self._all_reduce_buckets(to_reduce, size if is_half else 0))
        sums = [[next(reduced) for _ in tensors] for tensors in sent]
        total = next(reduced) if is_weighted else size
        results: list[Any] = []
        for column, local, summed in zip(columns, local_sums, sums, strict=True):
            if local is None:
                rows, divisor = sparse.concatenate(column), total if mean else None
                results.append(self._gather_rows(rows, summed, divisor, size))
            elif mean:
                results.append(_divide(summed[0], total, size))
            else:  # a local sum that is already on all devices is not copied again
                results.append(local if self._collectives.size == 1 else summed[0])
        return results

    def _local_sums(
        self, columns: Sequence[Sequence[Any]], weights: Sequence[tf.Tensor | None]
    ) -> list[Any]:
        """Returns the sum of each tensor over this worker's replicas; None for `IndexedSlices`."""
        dense = [
            n for n, column in enumerate(columns) if not isinstance(column[0], tf.IndexedSlices)
        ]
        weighted: list[list[tf.Tensor]] = []
        for n in dense:
            weighted.append([])
            scopes = self._scopes(len(weights))
            for value, weight, scope in zip(columns[n], weights, scopes, strict=True):
                with scope:
                    weighted[-1].append(_apply_weight(value, weight))
        if self._local is None or len(weights) == 1 or not dense:
            sums: list[Any] = [v[0] if len(v) == 1 else tf.add_n(v) for v in weighted]
        else:
            sums = self._reduce_locally(weighted, self._local)
        results: list[Any] = [None] * len(columns)
        for n, total in zip(dense, sums, strict=True):
            results[n] = total
        return results

    def _reduce_locally(
        self, columns: Sequence[Sequence[tf.Tensor]], local: tf.distribute.CrossDeviceOps
    ) -> list[Any]:
        """Returns the sums over this worker's replicas, computed for one dtype at a time.

        TensorFlow's operations concatenate the tensors of a batch, which requires a common dtype.
        """
        sums: list[Any] = [None] * len(columns)
        is_nccl = isinstance(local, tf.distribute.NcclAllReduce)
        for dtype in dict.fromkeys(column[0].dtype for column in columns):
            positions = [n for n, column in enumerate(columns) if column[0].dtype == dtype]
            # TensorFlow's NCCL operation does not support bfloat16. A sum on one device would need
            # a copy from each replica to that device.
            sent_as = tf.float32 if is_nccl and dtype == tf.bfloat16 else dtype
            if is_nccl and sent_as not in _NCCL_DTYPES:
                totals: list[Any] = [tf.add_n(columns[n]) for n in positions]
            else:
                values = [PerReplica(self._on_own_devices(columns[n], sent_as)) for n in positions]
                op = tf.distribute.ReduceOp.SUM
                totals = local.batch_reduce(op, [(value, value) for value in values])
            if sent_as != dtype:
                totals = [Mirrored(self._on_own_devices(_components(t), dtype)) for t in totals]
            for n, total in zip(positions, totals, strict=True):
                sums[n] = total
        return sums

    def _on_own_devices(self, column: Sequence[tf.Tensor], dtype: tf.DType) -> list[tf.Tensor]:
        """Returns the replicas' tensors in a dtype on their devices, which NCCL requires."""
        placed = []
        for value, scope in zip(column, self._scopes(len(column)), strict=True):
            with scope:
                placed.append(tf.cast(tf.identity(value), dtype))
        return placed

    def _scopes(self, count: int) -> list[contextlib.AbstractContextManager[Any]]:
        """Returns a scope of each replica's device; empty scopes for a value that they share."""
        if count == len(self._devices) > 1:
            return [tf.device(device) for device in self._devices]
        return [contextlib.nullcontext() for _ in range(count)]

    def _to_dense(self, column: Sequence[tf.IndexedSlices]) -> list[tf.Tensor]:
        """Returns a sparse gradient as dense tensors to reduce; empty if it stays sparse."""
        joined = sparse.concatenate(column)
        is_small = sparse.num_elements(joined) <= self._options.dense_below
        return sparse.densify(joined) if self._options.sum_rows and is_small else []

    def _gather_rows(
        self,
        own: tf.IndexedSlices,
        summed: Sequence[tf.Tensor],
        total: int | tf.Tensor | None,
        size: int,
    ) -> tf.IndexedSlices:
        """Returns the rows of all workers: from the dense sums if there are any, else gathered."""
        if summed:
            table, counts = summed
            result = sparse.touched_rows(table, counts, like=own)
        else:
            own = sparse.unique(own) if self._options.sum_rows else own
            result = sparse.all_gather(own, self._collectives)
            result = sparse.unique_of_workers(result) if self._options.sum_rows else result
        if total is None:
            return result
        values = _divide(result.values, total, size)
        return tf.IndexedSlices(values, result.indices, result.dense_shape)

    def _all_reduce_buckets(
        self, values: Sequence[tf.Tensor], half_summands: int = 0
    ) -> list[tf.Tensor]:
        """Returns the sums over all workers, reduced in buckets.

        Args:
          values: this worker's summands.
          half_summands: the number of replicas whose values are summed, if float32 values are sent
            as float16; 0 sends them as they are.
        """
        is_half = [half_summands > 0 and value.dtype == tf.float32 for value in values]
        # The sum is computed in float16, too, and may overflow even if no summand does; so summands
        # are divided first.
        sent = [
            tf.cast(value / half_summands, tf.float16) if half else value
            for value, half in zip(values, is_half, strict=True)
        ]
        sums: list[tf.Tensor] = [None] * len(sent)
        for bucket in buckets([_bytes_of(value) for value in sent], self._options.bucket_bytes):
            received = self._collectives.all_reduce([sent[position] for position in bucket])
            for position, value in zip(bucket, received, strict=True):
                half = is_half[position]
                sums[position] = tf.cast(value, tf.float32) * half_summands if half else value
        return sums

    def gather(self, value: tf.Tensor, axis: int) -> tf.Tensor:
        """Returns the workers' tensors, concatenated along `axis` in the order of ranks."""
        if axis == 0:
            return self._collectives.all_gather(value)
        order = tf.range(tf.rank(value))
        swapped = tf.tensor_scatter_nd_update(order, [[0], [axis]], [order[axis], 0])
        joined = self._collectives.all_gather(tf.transpose(value, swapped))
        return tf.transpose(joined, swapped)

    def _check_shapes(self, values: Sequence[tf.Tensor], axis: int) -> list[tf.Operation]:
        """Checks that the tensors of all replicas on all workers can be concatenated.

        Returns:
          In a function, the operations of the check, which raise
          `tf.errors.InvalidArgumentError`; an empty list in eager mode.

        Raises:
          ValueError: on every worker, if shapes differ in a dimension other than `axis`.
        """
        if self._collectives.size == 1:
            return []
        padded = []
        for value in values:
            shape = tf.tensor_scatter_nd_update(tf.shape(value), [[axis]], [_ANY])
            # The gathered shapes must have the same size, whatever the ranks of the tensors.
            padded.append(
                tf.pad(shape, [[0, _LARGEST_RANK - tf.size(shape)]], constant_values=_NONE)
            )
        gathered = self._collectives.all_gather(tf.stack(padded))
        rule = f"Tensors to gather along axis {axis} cannot differ in any other dimension."
        if not tf.executing_eagerly():
            return [tf.debugging.Assert(tf.reduce_all(gathered == gathered[:1]), [rule, gathered])]
        shapes = [[size for size in shape if size != _NONE] for shape in gathered.numpy().tolist()]
        if any(shape != shapes[0] for shape in shapes):
            text = str(shapes).replace(str(_ANY), "any")
            raise ValueError(
                f"{rule} Received, by rank of the replicas: {text}. Pad or slice them first."
            )
        return []

    # The methods below override CrossDeviceOps' public methods, not the `..._implementation` ones
    # for subclasses, because the checks of `destinations` before those reject the arguments of a
    # tf.function. Results are copied to all devices of this worker.

    def reduce(
        self,
        reduce_op: tf.distribute.ReduceOp,
        per_replica_value: Any,
        destinations: Any,
        options: Any = None,
    ) -> Any:
        """Returns the sum or mean over all replicas."""
        return self.batch_reduce(reduce_op, [(per_replica_value, destinations)], options)[0]

    def batch_reduce(
        self,
        reduce_op: tf.distribute.ReduceOp,
        value_destination_pairs: Iterable[tuple[Any, Any]],
        options: Any = None,
    ) -> list[Any]:
        """Returns the sums or means over all replicas, reduced in one batch.

        [Note: exchanges after updates]
        In a function, the exchange starts after all earlier side effects. Keras reduces the logs of
        a step here, whose values are known long before the optimizer's updates are made. Without
        an order, TensorFlow would exchange them before the updates on one worker, and after them
        on another, which would then wait for each other's updates.
        """
        del options
        columns = [_components(value) for value, _ in value_destination_pairs]
        results: list[Any] = [None] * len(columns)
        effects = _earlier_effects() if self._collectives.size > 1 else []
        # A value that all replicas share has one component, and counts once per worker.
        for count in sorted({len(column) for column in columns}):
            numbers = [n for n, column in enumerate(columns) if len(column) == count]
            replicas = list(zip(*(columns[n] for n in numbers), strict=True))
            weights = self._weights() if count == len(self._devices) else None
            with tf.control_dependencies(effects):
                reduced = self.all_reduce(reduce_op, replicas, weights)
            for n, value in zip(numbers, reduced, strict=True):
                results[n] = self._mirror(value)
        return results

    def broadcast(self, tensor: Any, destinations: Any) -> Any:
        """Broadcasts a tensor from this worker's first replica to its other replicas.

        As in stock tf.distribute, a variable with ONLY_FIRST_REPLICA (a step counter) does not
        leave the worker. Optimizers write such a variable in every step.
        """
        del destinations
        return self._mirror(_as_tensors(tensor))

    def _gather(
        self, per_replica_value: Any, destinations: Any, axis: int, options: Any = None
    ) -> Any:
        del destinations, options
        values = _components(per_replica_value)
        if any(isinstance(value, tf.IndexedSlices) for value in values):
            raise NotImplementedError(
                "gather requires dense tensors. Received: IndexedSlices. Call tf.convert_to_tensor "
                "on it first."
            )
        tensors = [tf.convert_to_tensor(value) for value in values]
        axis = axis if axis >= 0 else axis + tensors[0].shape.rank
        with tf.control_dependencies(self._check_shapes(tensors, axis)):
            joined = tf.concat(tensors, axis)
        return self._mirror(self.gather(joined, axis))

    def _all_reduce(
        self, reduce_op: tf.distribute.ReduceOp, value: Any, replica_id: int, options: Any
    ) -> Any:
        del replica_id, options
        values = tf.nest.flatten(value)
        return tf.nest.pack_sequence_as(value, self.all_reduce(reduce_op, [values]))

    def _mirror(self, value: tf.Tensor | tf.IndexedSlices) -> Any:
        """Copies a value to each of this worker's devices."""
        if isinstance(value, DistributedValues):
            return value
        if len(self._devices) == 1:
            return regroup((value,), wrap_class=Mirrored)
        copies = []
        for device in self._devices:
            # Rows of tables are updated on the host; see [Note: lookups on the host].
            with tf.device(HOST if sparse.is_marked_reduced(value) else device):
                copies.append(tf.nest.map_structure(tf.identity, value, expand_composites=True))
        return regroup(tuple(copies), wrap_class=Mirrored)


def _finite_where_counted(
    values: Sequence[tf.Tensor | tf.IndexedSlices], weight: tf.Tensor | None
) -> Sequence[tf.Tensor | tf.IndexedSlices]:
    """Replaces NaN and infinity by 0 if the weight is 0."""
    if not values or weight is None or tf.get_static_value(weight):
        return values

    def replace_value(value: tf.Tensor | tf.IndexedSlices) -> tf.Tensor | tf.IndexedSlices:
        if isinstance(value, tf.IndexedSlices) or not value.dtype.is_floating:
            return value
        return tf.where(tf.math.is_finite(value), value, tf.zeros_like(value))

    # A condition, because otherwise all elements of all gradients would be compared in each step.
    values = [v if isinstance(v, tf.IndexedSlices) else tf.convert_to_tensor(v) for v in values]
    return tf.cond(weight > 0, lambda: values, lambda: [replace_value(value) for value in values])


def buckets(sizes: Sequence[int], limit: int) -> list[list[int]]:
    """Groups positions, last first, into buckets of at most `limit` bytes or a single position.

    >>> buckets([10, 10, 30, 5], 20)
    [[3], [2], [1, 0]]
    >>> buckets([10, 10, 30, 5], 0)
    [[3, 2, 1, 0]]
    """
    groups: list[list[int]] = []
    filled = 0
    for position in reversed(range(len(sizes))):
        if not groups or (limit and filled + sizes[position] > limit):
            groups.append([])
            filled = 0
        groups[-1].append(position)
        filled += sizes[position]
    return groups


def nccl_between(devices: Sequence[str]) -> tf.distribute.CrossDeviceOps | None:
    """Returns NCCL operations for several GPUs; None for one device or if one is not a GPU.

    >>> type(nccl_between(["/device:GPU:0", "/device:GPU:1"])).__name__
    'NcclAllReduce'
    >>> nccl_between(["/device:CPU:0", "/device:CPU:1"]) is None
    True
    """
    is_for_all = len(devices) > 1 and all("gpu" in device.lower() for device in devices)
    return tf.distribute.NcclAllReduce() if is_for_all and not has_virtual_gpus() else None


def _earlier_effects() -> list[tf.Operation]:
    """Returns an operation that runs after all stateful ones of the function being traced."""
    if tf.executing_eagerly():
        return []
    operations = tf.compat.v1.get_default_graph().get_operations()
    return [tf.group(*(each for each in operations if each.op_def.is_stateful))]


def _bytes_of(value: tf.Tensor) -> int:
    """Returns the size of a tensor in bytes; 0 if its static shape is unknown."""
    return (value.shape.num_elements() or 0) * value.dtype.size


def _apply_weight(value: tf.Tensor, weight: tf.Tensor | None) -> tf.Tensor:
    value = tf.convert_to_tensor(value)
    if weight is None or not value.dtype.is_floating:
        return value
    return value * tf.cast(weight, value.dtype)


def _divide(value: tf.Tensor, total: int | tf.Tensor, size: int) -> tf.Tensor:
    if isinstance(total, int) or not value.dtype.is_floating:
        return value / size
    return value / tf.maximum(tf.cast(total, value.dtype), 1)


def _as_tensors(value: Any) -> tf.Tensor | tf.IndexedSlices:
    is_rows = isinstance(value, tf.IndexedSlices)
    return sparse.as_tensors(value) if is_rows else tf.convert_to_tensor(value)


def _components(per_replica_value: Any) -> tuple[Any, ...]:
    if isinstance(per_replica_value, DistributedValues):
        return tuple(per_replica_value.values)
    return (per_replica_value,)
