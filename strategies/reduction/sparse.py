"""Sums of sparse gradients (`tf.IndexedSlices`) across replicas and workers.

Repeated rows are summed over the replicas of a worker and over the workers. Gradients of small
tables are converted to dense tensors before they are sent.

[Note: marked gradients]
The gradient of an embedding's rows is summed over the workers within the backward pass, because the
rows' owners need it (`embedding/lookup/group_lookup.py`). Keras then asks the strategy for the sum
of all gradients, including this one. So it is marked, and only summed over the replicas of this
worker. Before that, Keras or the user may scale or clip it, which creates new `IndexedSlices` with
the same `indices`; so the mark belongs to the tensor of indices. Operations that create new
indices, or a dense gradient, lose the mark; `check_identifies_rows` raises an error if this would
be wrong. The sum over replicas has other rows than each of them, and these must be put in view (see
[Note: the rows in view] in variables/row_variable.py): so a mark includes a function for this.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from strategies.collectives import Collectives
from strategies.reduction.row_wire import RowWire
from strategies.utils.devices import HOST

_WIDTH_OF_VECTORS = 32  # from this width on, TensorFlow calls Eigen for each row
# Keyed by the identity of a gradient's indices, which scaling and clipping do not change.
_reduced_indices: weakref.WeakValueDictionary[int, tf.Tensor] = weakref.WeakValueDictionary()
_rebuilders: dict[int, tuple[tf.Tensor, Callable[..., Any]]] = {}


def as_tensors(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Converts the Python or NumPy values of a gradient to tensors.

    >>> as_tensors(tf.IndexedSlices(tf.ones([1, 2]), [3], (5, 2))).dense_shape.numpy().tolist()
    [5, 2]
    """
    shape = slices.dense_shape
    return tf.IndexedSlices(
        tf.convert_to_tensor(slices.values),
        tf.convert_to_tensor(slices.indices),
        None if shape is None else tf.convert_to_tensor(shape),
    )


def concatenate(slices: Sequence[tf.IndexedSlices]) -> tf.IndexedSlices:
    """Concatenates the gradients of several replicas; the result represents their sum."""
    if len(slices) == 1:
        return slices[0]
    values = tf.concat([one.values for one in slices], 0)
    indices = tf.concat([one.indices for one in slices], 0)
    return tf.IndexedSlices(values, indices, slices[0].dense_shape)


def unique(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Sums the values of repeated rows; returns the gradient with each row once.

    >>> rows = tf.IndexedSlices(tf.constant([[1.0], [2.0], [4.0]]), tf.constant([3, 1, 3]))
    >>> unique(rows).values.numpy().tolist(), unique(rows).indices.numpy().tolist()
    ([[5.0], [2.0]], [3, 1])
    """
    indices, _, (values,) = sum_by_index(slices.indices, slices.values)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def sum_by_index(
    indices: tf.Tensor, *values: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
    """Sums values that have the same index.

    >>> distinct, positions, (sums,) = sum_by_index(tf.constant([3, 1, 3]), tf.constant([1, 2, 4]))
    >>> distinct.numpy().tolist(), positions.numpy().tolist(), sums.numpy().tolist()
    ([3, 1], [0, 1, 0], [5, 2])

    Args:
      indices: indices, [n].
      *values: tensors with a first dimension of n.

    Returns:
      The distinct indices in the order of first occurrence, the position of each index among them,
      and the sums of each tensor.
    """
    distinct, positions = tf.unique(indices)
    count = tf.size(distinct)
    return (
        distinct,
        positions,
        [sum_by_position(each, positions, count) for each in values],
    )


def sum_by_position(values: tf.Tensor, positions: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Sums values that have the same position, in their order.

    >>> sum_by_position(tf.constant([[1.0], [2.0], [4.0]]), tf.constant([0, 1, 0]), 3).numpy()
    array([[5.],
           [2.],
           [0.]], dtype=float32)

    Args:
      values: values, [n, ...].
      positions: the position of each of them, [n], from 0 to `count` - 1.
      count: the number of positions.
    """
    if not _is_narrow(values) or tf.config.list_logical_devices("GPU"):
        return tf.math.unsorted_segment_sum(values, positions, count)
    # A product with a sparse matrix of ones adds the same numbers in the same order, and takes a
    # third of the time.
    size = tf.size(positions, tf.int64)
    return tf.raw_ops.SparseTensorDenseMatMul(
        a_indices=tf.stack([tf.cast(positions, tf.int64), tf.range(size)], 1),
        a_values=tf.ones([size], values.dtype),
        a_shape=tf.stack([tf.cast(count, tf.int64), size]),
        b=values,
    )


def _is_narrow(values: tf.Tensor) -> bool:
    """Returns whether values are rows for which TensorFlow multiplies in a simple loop."""
    if values.dtype not in (tf.float32, tf.float64) or values.shape.rank != 2:
        return False
    width = values.shape[1]
    return width is not None and width < _WIDTH_OF_VECTORS


def all_gather(slices: tf.IndexedSlices, collectives: Collectives) -> tf.IndexedSlices:
    """Gathers the gradients of all workers, which represent their sum; all workers must call it."""
    values = collectives.all_gather(slices.values)
    indices = collectives.all_gather(slices.indices)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def all_reduce(
    slices: tf.IndexedSlices, collectives: Collectives, wire: RowWire | None = None
) -> tf.IndexedSlices:
    """Sums the gradients of all workers, with each row once; all workers must call it.

    Args:
      slices: this worker's gradient.
      collectives: collectives among the workers.
      wire: form in which the values are exchanged; None sends them as they are.
    """
    if wire is None:
        return unique_of_workers(all_gather(slices, collectives))
    sent = tf.IndexedSlices(wire.encode(slices.values), slices.indices, slices.dense_shape)
    gathered = all_gather(sent, collectives)
    values = wire.decode(gathered.values, slices.values.shape[1])
    return unique_of_workers(tf.IndexedSlices(values, gathered.indices, gathered.dense_shape))


def unique_of_workers(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Returns `unique` of a gradient gathered from all workers, bitwise identical on each."""
    # On the host, because a GPU adds the values of a row in an order that varies between runs.
    with tf.device(HOST):
        return unique(slices)


def num_elements(slices: tf.IndexedSlices) -> float:
    """Returns the number of elements of the table; infinity if it is not known statically."""
    shape = None if slices.dense_shape is None else tf.get_static_value(slices.dense_shape)
    return math.inf if shape is None else float(math.prod(shape.tolist()))


def densify(slices: tf.IndexedSlices) -> list[tf.Tensor]:
    """Returns the dense gradient of the table and the number of occurrences of each row."""
    counts = tf.ones_like(slices.indices, slices.values.dtype)
    rows = slices.dense_shape[0]
    return [
        tf.convert_to_tensor(slices),
        tf.math.unsorted_segment_sum(counts, slices.indices, rows),
    ]


def touched_rows(table: tf.Tensor, counts: tf.Tensor, like: tf.IndexedSlices) -> tf.IndexedSlices:
    """Returns the rows that have a gradient, from the all-reduced outputs of `densify`.

    Optimizers must not update the other rows.
    """
    indices = tf.cast(tf.where(counts > 0)[:, 0], like.indices.dtype)
    return tf.IndexedSlices(tf.gather(table, indices), indices, like.dense_shape)


def mark_reduced(
    indices: tf.Tensor,
    rows: tf.Tensor,
    show: Callable[[tf.Tensor, tf.Tensor], tf.IndexedSlices],
) -> None:
    """Marks a gradient as already summed over all workers; see [Note: marked gradients].

    Args:
      indices: indices of the gradient.
      rows: numbers of the rows, in the same order.
      show: function of the values and rows of the sum over this worker's replicas, which puts the
        rows in view and returns a marked gradient.
    """
    # An entry must not outlive its tensor, because another tensor may get the same identity.
    key = id(indices)
    _reduced_indices[key] = indices
    _rebuilders[key] = rows, show
    weakref.finalize(indices, _rebuilders.pop, key, None)


def is_marked_reduced(slices: object) -> bool:
    """Returns whether `mark_reduced` marked a gradient."""
    return (
        isinstance(slices, tf.IndexedSlices)
        and _reduced_indices.get(id(slices.indices)) is slices.indices
    )


def sum_replicas(column: Sequence[tf.IndexedSlices]) -> tf.IndexedSlices:
    """Sums marked gradients over the replicas of this worker; returns a marked gradient."""
    if len(column) == 1:
        return column[0]
    _, show = _rebuilders[id(column[0].indices)]
    with tf.device(HOST):  # the rows are there; see [Note: lookups on the host]
        rows = tf.concat([_rebuilders[id(one.indices)][0] for one in column], 0)
        values = tf.concat([one.values for one in column], 0)
        total = unique(tf.IndexedSlices(values, rows))
        return show(total.values, total.indices)
