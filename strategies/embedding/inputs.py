"""Inputs of a layer: conversion of any kind of tensor to a vector of ids, and combiners."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from strategies.utils.assertions import assert_in_step

_BEYOND = (
    "Ids must fit into int64. Received: a uint64 id of 2**63 or more. Pass ids.view(np.int64) or "
    "tf.bitcast(ids, tf.int64) to map such ids to negative ones."
)


def int64_tensor(ids: tf.Tensor) -> tf.Tensor:
    """Converts a tensor of integers to int64.

    Raises:
      ValueError: if a value is out of range; in a graph, `tf.errors.InvalidArgumentError`.
    """
    result = tf.cast(ids, tf.int64)
    if ids.dtype != tf.uint64:
        return result
    is_in_range = tf.reduce_all(result >= 0)
    if tf.executing_eagerly():
        if not is_in_range:
            raise ValueError(_BEYOND)
        return result
    with tf.control_dependencies([tf.debugging.Assert(is_in_range, [_BEYOND])]):
        return tf.identity(result)


def int64_array(ids: Any) -> np.ndarray:
    """Converts integers to an int64 NumPy array.

    >>> int64_array(np.array([1, 2], np.uint64))
    array([1, 2])

    Raises:
      ValueError: if the values are not integers, or one is out of range.
    """
    ids = np.asarray(ids)
    if ids.size and ids.dtype.kind not in "iu":
        raise ValueError(f"Ids must be integers. Received: {ids.dtype}. Convert them first.")
    if ids.dtype == np.uint64 and (ids >= 2**63).any():
        raise ValueError(_BEYOND)
    return ids.astype(np.int64)


# The integers that a dtype represents exactly are those with an absolute value below this bound.
_EXACT_BELOW = {
    tf.float16: 2**11,
    tf.bfloat16: 2**8,
    tf.float32: 2**24,
    tf.float64: 2**53,
}


class Bags:
    """Bags of ids of one feature in a batch: a flat vector of ids, and the bag of each.

    Args:
      inputs: ids in a dense tensor, a `tf.RaggedTensor` or a `tf.SparseTensor`, as integers or
        whole numbers in floating point.
      weights: None, or floats in the same form as the ids.
      combiner: None, "sum", "mean" or "sqrtn".
      mask_zero: whether id 0 is padding.

    Raises:
      ValueError: if the arguments do not fit together.
    """

    def __init__(self, inputs: Any, weights: Any, combiner: str | None, mask_zero: bool):
        # Every kind of tensor is converted to a vector of ids, the bag of each id, and the number
        # of bags, some of which may have no ids. `combine` restores the form of the inputs.
        self._combiner = combiner
        self._inputs = inputs
        if weights is not None and combiner is None:
            raise ValueError(
                "weights require a combiner. Received: weights with combiner=None. Use 'sum', "
                "'mean' or 'sqrtn'."
            )
        if weights is not None and type(weights) is not type(inputs):
            raise ValueError(
                "Weights must be of the same type as the ids. Received: ids in a "
                f"{type(inputs).__name__}, weights in a {type(weights).__name__}."
            )
        if isinstance(inputs, tf.SparseTensor):
            if combiner is None:
                raise ValueError(
                    "A SparseTensor of ids requires a combiner. Received: combiner=None. Use "
                    "'sum', 'mean' or 'sqrtn', or pass a RaggedTensor."
                )
            ids, self._bags = inputs.values, inputs.indices[:, 0]
            self._count = inputs.dense_shape[0]
            weights = None if weights is None else weights.values
        elif isinstance(inputs, tf.RaggedTensor):
            if combiner is not None and inputs.ragged_rank > 1:
                raise ValueError(
                    "The ragged_rank of the ids must be 1 with a combiner. Received: a "
                    f"RaggedTensor of ragged_rank {inputs.ragged_rank}. Call merge_dims(1, -1) on "
                    "it first."
                )
            ids = inputs.flat_values
            self._bags, self._count = inputs.value_rowids(), inputs.nrows()
            if weights is not None:
                with tf.control_dependencies([_assert_same_bags(inputs, weights)]):
                    weights = tf.identity(weights.flat_values)
        else:
            ids = tf.reshape(inputs, [-1])
            length = 1 if inputs.shape.rank == 1 else tf.shape(inputs, tf.int64)[-1]
            self._count = tf.size(ids, tf.int64) // tf.maximum(tf.cast(length, tf.int64), 1)
            if inputs.shape.rank != 1:  # counts bags without ids as well
                self._count = tf.reduce_prod(tf.shape(inputs, tf.int64)[:-1])
            self._bags = tf.repeat(tf.range(self._count), length)
            weights = None if weights is None else tf.reshape(weights, [-1])
        self._weights = None if weights is None else tf.cast(weights, tf.float32)
        self._kept = None
        ids = integer_ids(ids)
        if mask_zero and combiner is not None:
            self._kept = tf.where(ids != 0)[:, 0]
            ids = tf.gather(ids, self._kept)
        self.ids = ids

    def combine(self, rows: tf.Tensor) -> Any:
        """Combines the rows of `ids`, float32 [n, width], into the feature's output."""
        width = rows.shape[-1]
        if self._combiner is None:
            if isinstance(self._inputs, tf.RaggedTensor):
                return self._inputs.with_flat_values(rows)
            shape = tf.concat([tf.shape(self._inputs), [width]], 0)
            return tf.ensure_shape(tf.reshape(rows, shape), [*self._inputs.shape, width])
        if self._is_even():
            return self._sum_bags(rows)
        bags, weights = self._bags, self._weights
        if self._kept is not None:
            bags = tf.gather(bags, self._kept)
            weights = None if weights is None else tf.gather(weights, self._kept)
        if weights is None:
            weights = tf.ones([tf.size(bags)])
        else:
            rows = rows * weights[:, tf.newaxis]

        def total(values: tf.Tensor) -> tf.Tensor:
            return tf.math.unsorted_segment_sum(values, bags, self._count)

        result = total(rows)
        # Dividing after the sum makes the output of an empty bag 0.
        if self._combiner == "mean":
            result = tf.math.divide_no_nan(result, total(weights)[:, tf.newaxis])
        elif self._combiner == "sqrtn":
            result = tf.math.divide_no_nan(result, tf.sqrt(total(weights**2))[:, tf.newaxis])
        inputs = self._inputs
        if isinstance(inputs, tf.Tensor) and inputs.shape.rank > 2:
            outer = tf.shape(inputs)[:-1]
            result = tf.reshape(result, tf.concat([outer, [width]], 0))
            return tf.ensure_shape(result, [*inputs.shape[:-1], width])
        return tf.ensure_shape(result, [inputs.shape[0], width])

    def _is_even(self) -> bool:
        """Returns whether all bags have the same number of ids, each of weight 1."""
        is_dense = isinstance(self._inputs, tf.Tensor) and self._inputs.shape.rank > 1
        return is_dense and self._weights is None and self._kept is None

    def _sum_bags(self, rows: tf.Tensor) -> tf.Tensor:
        """Combines the rows of bags with the same number of ids by a sum along one axis."""
        shape = tf.concat([tf.shape(self._inputs), [rows.shape[-1]]], 0)
        rows = tf.ensure_shape(tf.reshape(rows, shape), [*self._inputs.shape, rows.shape[-1]])
        if self._inputs.shape[-1] == 1:
            return tf.squeeze(rows, -2)
        total = tf.reduce_sum(rows, -2)
        if self._combiner == "sum":
            return total
        length = tf.cast(tf.shape(self._inputs)[-1], rows.dtype)
        count = length if self._combiner == "mean" else tf.sqrt(length)
        return tf.math.divide_no_nan(total, count)


def integer_ids(ids: tf.Tensor) -> tf.Tensor:
    """Converts ids to int64.

    Ids are floats if a model has an input of Keras's default dtype, or while Keras traces a model
    to build it. Traced ids have no values yet, so values are checked when the function runs.

    >>> integer_ids(tf.constant([3.0, -4.0])).numpy().tolist()
    [3, -4]

    Args:
      ids: a tensor of any shape.

    Raises:
      ValueError: if the ids are not numbers, not whole, or too large to be exact. In a function,
        invalid values raise `tf.errors.InvalidArgumentError`.
    """
    if ids.dtype.is_integer:
        return int64_tensor(ids)
    if ids.dtype not in _EXACT_BELOW:
        raise ValueError(
            f"Ids must be integers. Received: {ids.dtype.name}. Create the input with "
            "dtype='int64'; convert strings to ids with keras.layers.StringLookup or Hashing."
        )
    bound = _EXACT_BELOW[ids.dtype]
    # Comparisons with NaN are false, so NaN is invalid too.
    is_valid = (tf.round(ids) == ids) & (tf.abs(ids) < tf.cast(bound, ids.dtype))
    invalid = tf.boolean_mask(ids, ~is_valid)[:3]
    rule = (
        f"Ids must be integers, or whole numbers of {ids.dtype.name} between -{bound} and {bound}, "
        "the range in which this dtype is exact. Received:"
    )
    remedy = (
        "Create the input with keras.Input(..., dtype='int64'); a Sequential model without a "
        "keras.Input has a floating-point input."
    )
    if tf.executing_eagerly():
        if len(invalid):
            raise ValueError(f"{rule} {invalid.numpy().tolist()}. {remedy}")
        return tf.cast(ids, tf.int64)
    check = assert_in_step(tf.reduce_all(is_valid), [rule, invalid, remedy])
    with tf.control_dependencies([check]):
        return tf.cast(ids, tf.int64)


def _assert_same_bags(ids: tf.RaggedTensor, weights: tf.RaggedTensor) -> tf.Operation | None:
    same = tf.size(ids.row_splits) == tf.size(weights.row_splits)
    # Splits of different sizes cannot be compared.
    length = tf.where(same, tf.size(ids.row_splits), 0)
    same &= tf.reduce_all(ids.row_splits[:length] == weights.row_splits[:length])
    return assert_in_step(
        same,
        [
            "The weights must have the same row lengths as the ids. Received: rows that end at",
            ids.row_splits, "and weights that end at", weights.row_splits,
        ],
    )  # fmt: skip
