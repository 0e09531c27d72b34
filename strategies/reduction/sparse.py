"""Sparse gradients (`tf.IndexedSlices`): deduplicated, or made dense, to be reduced."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence

import tensorflow as tf

# By the identity of a gradient's indices, which what scales or clips it leaves as they are.
_reduced_indices: weakref.WeakValueDictionary[int, tf.Tensor] = weakref.WeakValueDictionary()
_rebuilders: dict[int, tuple[tf.Tensor, Callable]] = {}


def as_tensors(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Returns the same gradient, with tensors in place of Python or NumPy values.

    >>> as_tensors(tf.IndexedSlices(tf.ones([1, 2]), [3], (5, 2))).dense_shape.numpy().tolist()
    [5, 2]
    """
    shape = slices.dense_shape
    return tf.IndexedSlices(
        tf.convert_to_tensor(slices.values),
        tf.convert_to_tensor(slices.indices),
        None if shape is None else tf.convert_to_tensor(shape),
    )


def concatenated(slices: Sequence[tf.IndexedSlices]) -> tf.IndexedSlices:
    """Returns the rows of several gradients of one table, concatenated: their sum."""
    if len(slices) == 1:
        return slices[0]
    values = tf.concat([one.values for one in slices], 0)
    indices = tf.concat([one.indices for one in slices], 0)
    return tf.IndexedSlices(values, indices, slices[0].dense_shape)


def unique(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Returns the same gradient with each row once.

    >>> rows = tf.IndexedSlices(tf.constant([[1.0], [2.0], [4.0]]), tf.constant([3, 1, 3]))
    >>> unique(rows).values.numpy().tolist(), unique(rows).indices.numpy().tolist()
    ([[5.0], [2.0]], [3, 1])
    """
    indices, positions = tf.unique(slices.indices)
    values = tf.math.unsorted_segment_sum(slices.values, positions, tf.size(indices))
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def num_elements(slices: tf.IndexedSlices) -> float:
    """Returns the number of elements of the table; infinity if its static shape is unknown."""
    shape = None if slices.dense_shape is None else tf.get_static_value(slices.dense_shape)
    return math.inf if shape is None else float(math.prod(shape.tolist()))


def densified(slices: tf.IndexedSlices) -> list[tf.Tensor]:
    """Returns the dense gradient of the table, and how often each row was touched."""
    counts = tf.ones_like(slices.indices, slices.values.dtype)
    rows = slices.dense_shape[0]
    return [
        tf.convert_to_tensor(slices),
        tf.math.unsorted_segment_sum(counts, slices.indices, rows),
    ]


def touched_rows(table: tf.Tensor, counts: tf.Tensor, like: tf.IndexedSlices) -> tf.IndexedSlices:
    """Returns the touched rows of what `densified` gave: an optimizer leaves the others alone."""
    indices = tf.cast(tf.where(counts > 0)[:, 0], like.indices.dtype)
    return tf.IndexedSlices(tf.gather(table, indices), indices, like.dense_shape)


def mark_reduced(
    indices: tf.Tensor,
    rows: tf.Tensor,
    rebuild: Callable[[tf.Tensor, tf.Tensor], tf.IndexedSlices],
) -> None:
    """Marks a gradient as reduced over all workers already; its rows are this worker's own.

    Args:
      indices: of the gradient.
      rows: the rows that it is of.
      rebuild: makes a gradient of values and rows, for the sum over replicas of this worker.
    """
    key = id(indices)
    _reduced_indices[key] = indices
    _rebuilders[key] = rows, rebuild
    weakref.finalize(indices, _rebuilders.pop, key, None)


def is_marked_reduced(slices: object) -> bool:
    """Returns whether `mark_reduced` has marked a gradient."""
    return (
        isinstance(slices, tf.IndexedSlices)
        and _reduced_indices.get(id(slices.indices)) is slices.indices
    )


def local_sum(column: Sequence[tf.IndexedSlices]) -> tf.IndexedSlices:
    """Returns the sum over this worker's replicas of gradients that `mark_reduced` has marked."""
    if len(column) == 1:
        return column[0]
    _, rebuild = _rebuilders[id(column[0].indices)]
    numbers = tf.concat([_rebuilders[id(one.indices)][0] for one in column], 0)
    values = tf.concat([one.values for one in column], 0)
    total = unique(tf.IndexedSlices(values, numbers))
    return rebuild(total.values, total.indices)
