"""Elements of datasets: their number of examples, and elements without examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from strategies.collectives import Collectives
from strategies.compat.tensorflow import PerReplica, PerReplicaSpec, empty_batch, replica_specs

# A decorator for functions that tf.data calls: AutoGraph would be most of the cost of `map`.
without_autograph = tf.autograph.experimental.do_not_convert


def count_examples(value: Any) -> tf.Tensor:
    """Returns the number of examples of a dense, ragged or sparse tensor, an int64 scalar."""
    if isinstance(value, tf.SparseTensor):
        return value.dense_shape[0]
    if isinstance(value, tf.RaggedTensor):
        return value.nrows(out_type=tf.int64)
    return tf.shape(value, tf.int64)[0]


def element_of(dataset: tf.data.Dataset, batch: tuple[Any, ...]) -> Any:
    """Returns an element of a dataset from the arguments that `map` passes to a function.

    >>> triplets = tf.data.Dataset.from_tensors(((1, 2, 3),))
    >>> triplets.map(lambda *batch: element_of(triplets, batch)).element_spec == (
    ...     triplets.element_spec
    ... )
    True
    """
    # `map` passes the components of a tuple as separate arguments, even if there is only one.
    return batch if type(dataset.element_spec) is tuple else batch[0]


def empty_element(spec: Any, sizes: tf.Tensor | None = None) -> Any:
    """Returns batches without examples.

    >>> empty_element(tf.TensorSpec([4, None])).shape
    TensorShape([0, 0])
    >>> empty_element(tf.TensorSpec([None, None]), tf.constant([3], tf.int64)).shape
    TensorShape([0, 3])

    Args:
      spec: the `tf.TypeSpec`s of the batches.
      sizes: the sizes of their other dimensions, as `inner_sizes` returns them. If it is None,
        dimensions of unknown size are 0.
    """
    start = 0

    def empty(one: Any) -> Any:
        nonlocal start
        if isinstance(one, PerReplicaSpec):
            return PerReplica([empty(part) for part in replica_specs(one)])
        count = len(_inner_shape(one))
        start += count
        if sizes is not None and None in _inner_shape(one):
            return _empty_of(one, sizes[start - count : start])
        if isinstance(one, tf.TensorSpec | tf.SparseTensorSpec) and one.shape.rank:
            # TensorFlow's function would keep a fixed number of examples of unknown width.
            one = type(one)([size or 0 for size in one.shape], one.dtype)
        return empty_batch(one)

    return tf.nest.map_structure(empty, spec)


def has_unknown_sizes(spec: Any) -> bool:
    """Returns whether a size other than the number of examples is unknown.

    >>> has_unknown_sizes(tf.TensorSpec([None, 3])), has_unknown_sizes(tf.TensorSpec([4, None]))
    (False, True)
    """
    return any(None in _inner_shape(one) for one in _leaf_specs(spec))


def inner_sizes(spec: Any, element: Any) -> tf.Tensor:
    """Returns the sizes of an element's dimensions except the first and ragged ones, an int64[n].

    Args:
      spec: the `tf.TypeSpec`s of the element.
      element: the element.
    """
    shapes = [tf.zeros([0], tf.int64)]
    for one, value in zip(_leaf_specs(spec), _leaves(element), strict=True):
        if _inner_shape(one):
            shapes.append(_shape_of(value)[1:])
    return tf.concat(shapes, 0)


def common_sizes(dataset: tf.data.Dataset, collectives: Collectives) -> tf.Tensor | None:
    """Returns the inner sizes of the first worker that has a batch, or None; waits for all workers.

    Reads the first batch of a dataset if its spec lacks a size.

    >>> from strategies.collectives.base import LocalCollectives
    >>> numbers = tf.data.Dataset.range(3).padded_batch(2)
    >>> common_sizes(numbers, LocalCollectives()).shape
    TensorShape([0])

    Args:
      dataset: this worker's batches.
      collectives: the workers; their datasets have the same spec.
    """
    spec = dataset.element_spec
    if not has_unknown_sizes(spec):
        return inner_sizes(spec, empty_element(spec))
    first = [(1, inner_sizes(spec, batch)) for batch in dataset.take(1)]
    has, sizes = first[0] if first else (0, inner_sizes(spec, empty_element(spec)))
    own = tf.concat([[tf.constant(has, tf.int64)], sizes], 0)
    known = [each for each in collectives.all_gather(own[tf.newaxis]) if each[0]]
    return known[0][1:] if known else None


def append_empty(
    dataset: tf.data.Dataset, count: int | None = None, sizes: tf.Tensor | None = None
) -> tf.data.Dataset:
    """Returns a dataset of pairs (True, batch), followed by pairs (False, empty batch).

    An empty batch has no examples, and the inner sizes of the batch before it: a dimension of
    unknown size may be the input of a layer, for which 0 is an error.

    >>> words = tf.data.Dataset.from_tensors([[1, 2, 3]])
    >>> [(bool(has), batch.shape) for has, batch in append_empty(words, 1)]
    [(True, TensorShape([1, 3])), (False, TensorShape([0, 3]))]

    Args:
      dataset: batches.
      count: the number of empty batches; None for infinitely many.
      sizes: the inner sizes of empty batches if the dataset has no batch.
    """
    spec = dataset.element_spec
    first = empty_element(spec)
    empty = tf.data.Dataset.from_tensors((False, first)).repeat(count)
    flagged = dataset.map(without_autograph(lambda *batch: (True, element_of(dataset, batch))))
    pairs = flagged.concatenate(empty)
    if not has_unknown_sizes(spec):
        return pairs

    @without_autograph
    def keep_sizes(last: tf.Tensor, pair: tuple[tf.Tensor, Any]) -> tuple[tf.Tensor, Any]:
        has, batch = pair
        last = tf.where(has, inner_sizes(spec, batch), last)
        return last, (has, batch_or_empty(spec, has, batch, last))

    return scan_dataset(pairs, inner_sizes(spec, first) if sizes is None else sizes, keep_sizes)


def scan_dataset(
    dataset: tf.data.Dataset,
    state: tf.Tensor,
    function: Callable[[tf.Tensor, Any], tuple[tf.Tensor, Any]],
) -> tf.data.Dataset:
    """Returns `dataset.scan(state, function)`; it also supports batches of several replicas.

    Args:
      dataset: the dataset.
      state: the initial state.
      function: takes a state and an element; returns the new state and a new element, a tuple.
    """
    specs: list[Any] = []

    @without_autograph
    def flat(state: tf.Tensor, element: Any) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        state, element = function(state, element)
        specs.append(tf.nest.map_structure(tf.type_spec_from_value, element))
        return state, tuple(tf.nest.flatten(element, expand_composites=True))

    # `scan` cannot return the values of several replicas.
    parts = dataset.scan(state, flat)
    return parts.map(
        without_autograph(
            lambda *each: tf.nest.pack_sequence_as(specs[-1], each, expand_composites=True)
        )
    )


def batch_or_empty(spec: Any, has: tf.Tensor, batch: Any, sizes: tf.Tensor) -> Any:
    """Returns a batch, or an empty one with these inner sizes, in a function's graph."""

    def components(element: Any) -> list[tf.Tensor]:
        return tf.nest.flatten(element, expand_composites=True)

    # `tf.cond` returns tensors only, while the structure may have values of several replicas.
    chosen = tf.cond(has, lambda: components(batch), lambda: components(empty_element(spec, sizes)))
    return tf.nest.pack_sequence_as(batch, chosen, expand_composites=True)


def placeholder_element(spec: Any) -> Any:
    """Returns batches of a single example of zeros; None if the shape of an example is unknown.

    >>> placeholder_element((tf.TensorSpec([None, 3]), tf.TensorSpec([4], tf.string)))[0].shape
    TensorShape([1, 3])
    >>> placeholder_element(tf.TensorSpec([None, None]))

    Args:
      spec: the `tf.TypeSpec`s of the batches.
    """
    leaves = _leaf_specs(spec)
    if any(type(one) is not tf.TensorSpec or not one.shape.rank for one in leaves):
        return None
    if has_unknown_sizes(spec):
        return None

    def placeholder(one: Any) -> Any:
        if isinstance(one, PerReplicaSpec):
            return PerReplica([placeholder(part) for part in replica_specs(one)])
        return tf.zeros([one.shape[0] or 1, *one.shape[1:]], one.dtype)

    return tf.nest.map_structure(placeholder, spec)


def _leaf_specs(spec: Any) -> list[Any]:
    return [part for one in tf.nest.flatten(spec) for part in replica_specs(one)]


def _leaves(element: Any) -> list[Any]:
    """Returns the components of an element, for each replica, in the order of `_leaf_specs`."""
    return [
        part
        for value in tf.nest.flatten(element)
        for part in (value.values if isinstance(value, PerReplica) else [value])
    ]


def _inner_shape(spec: Any) -> list[int | None]:
    """Returns a component's sizes except the first and ragged ones; [] for an unknown rank."""
    shape = spec.shape
    if shape.rank is None:
        return []
    # The first dimension of the flat values is the innermost ragged one.
    skipped = spec.ragged_rank if isinstance(spec, tf.RaggedTensorSpec) else 0
    return shape.as_list()[1 + skipped :]


def _shape_of(value: Any) -> tf.Tensor:
    if isinstance(value, tf.SparseTensor):
        return value.dense_shape
    return tf.shape(value.flat_values if isinstance(value, tf.RaggedTensor) else value, tf.int64)


def _empty_of(spec: Any, sizes: tf.Tensor) -> Any:
    """Returns a component without examples and with the given inner sizes."""
    shape = tf.concat([[tf.constant(0, tf.int64)], sizes], 0)
    if isinstance(spec, tf.SparseTensorSpec):
        indices = tf.zeros([0, spec.shape.rank], tf.int64)
        return tf.SparseTensor(indices, tf.zeros([0], spec.dtype), shape)
    flat = tf.fill(shape, tf.zeros([], spec.dtype))
    flat = tf.ensure_shape(flat, [0, *_inner_shape(spec)])
    if not isinstance(spec, tf.RaggedTensorSpec):
        return flat
    splits = [tf.zeros([1], spec.row_splits_dtype)] * spec.ragged_rank
    return tf.RaggedTensor.from_nested_row_splits(flat, splits, validate=False)
