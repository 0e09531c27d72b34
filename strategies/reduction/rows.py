"""Gradients of rows (`tf.IndexedSlices`), and how they are made small or dense for a journey."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf


def joined(slices: Sequence[tf.IndexedSlices]) -> tf.IndexedSlices:
    """Returns all rows of several gradients of one table: their sum."""
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


def elements(slices: tf.IndexedSlices) -> float:
    """Returns how many elements the table has; infinity where that is not known in time."""
    shape = None if slices.dense_shape is None else tf.get_static_value(slices.dense_shape)
    return math.inf if shape is None else float(math.prod(shape.tolist()))


def spread(slices: tf.IndexedSlices) -> list[tf.Tensor]:
    """Returns the whole table's gradient, and how often each row was touched."""
    counts = tf.ones_like(slices.indices, slices.values.dtype)
    rows = slices.dense_shape[0]
    return [
        tf.convert_to_tensor(slices),
        tf.math.unsorted_segment_sum(counts, slices.indices, rows),
    ]


def collected(table: tf.Tensor, counts: tf.Tensor, like: tf.IndexedSlices) -> tf.IndexedSlices:
    """Returns the touched rows of what `spread` gave: an optimizer leaves the others alone."""
    indices = tf.cast(tf.where(counts > 0)[:, 0], like.indices.dtype)
    return tf.IndexedSlices(tf.gather(table, indices), indices, like.dense_shape)
