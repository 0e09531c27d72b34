"""Detection of workers that have different rows for the same dataset."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from strategies.collectives.base import Collectives
from strategies.compat.tensorflow import dataset_inputs, dataset_tensors, shard_index

_ROWS, _COLUMNS = 32, 16  # compared of each component
_NUMBERS = 512  # floats compared in all
# Different processors compute the same numbers except for the last bits.
_TOLERANCE = 1e-3


def check_same_rows(dataset: tf.data.Dataset, collectives: Collectives) -> None:
    """Checks that all workers created a dataset from the same tensors; waits for all workers.

    Compares a sample of the rows of `from_tensors` and `from_tensor_slices`, which Keras uses for
    arrays and which hold lists of files, and the index of each `shard`. The output of functions
    and generators is not compared: see `compare_first_batch`.

    >>> from strategies.collectives.base import LocalCollectives
    >>> check_same_rows(tf.data.Dataset.from_tensor_slices([1, 2]), LocalCollectives())

    Args:
      dataset: batches of all workers' rows.
      collectives: the workers.

    Raises:
      ValueError: if a worker's rows differ from the first worker's; on all workers.
    """
    if collectives.size == 1 or not tf.executing_eagerly():
        return
    shards = zlib.crc32(str(list(_shards(dataset))).encode())
    other = first_different(_tensors(dataset), collectives, shards)
    if other is not None:
        raise ValueError(_message(other))


def first_different(
    tensors: Iterable[tf.Tensor], collectives: Collectives, checksum: int = 0
) -> int | None:
    """Returns the first worker whose tensors are not the first worker's; waits for all workers.

    Samples are compared; None means that all are the same. Floats may differ in the last digits.

    Args:
      tensors: tensors of rank 1 or more, without complex numbers.
      collectives: the workers.
      checksum: a number that has to be the same as well.
    """
    mine = _sample(tensors, checksum)
    samples = collectives.all_gather(tf.constant(mine[np.newaxis])).numpy()
    return next((r for r, one in enumerate(samples) if not _is_like(one, samples[0])), None)


def compare_first_batch(dataset: tf.data.Dataset, stream: Collectives) -> tf.data.Dataset:
    """Returns a dataset that compares the first batch of each iterator with the other workers'.

    This detects generators that Python or NumPy shuffles without a common seed. A dataset made
    only from tensors is returned unchanged: `check_same_rows` compares those. Integers, strings
    and booleans that differ end the step on all workers. If only floats differ, a warning is
    logged, once for all iterators, because they may be augmented at random.

    Args:
      dataset: batches of all workers' rows.
      stream: a stream of collectives, for datasets that are iterated over one at a time.
    """
    if all(list(_own_tensors(root)) for root in _roots(dataset)):
        return dataset
    is_warned = False

    def compare(samples: np.ndarray) -> np.bool_:
        nonlocal is_warned
        first = samples[0]
        others = [r for r, sample in enumerate(samples) if sample[0] != first[0]]
        if others:
            raise ValueError(_message(others[0]))
        others = [r for r, sample in enumerate(samples) if not _is_like(sample, first)]
        if others and not is_warned:  # each epoch has a first batch
            is_warned = True
            logging.warning("%s", _message(others[0]))
        return np.bool_(True)

    @tf.autograph.experimental.do_not_convert
    def compare_batch(index: tf.Tensor, batch: Any) -> Any:
        is_compared = tf.cond(
            tf.equal(index, 0),
            lambda: tf.numpy_function(
                compare, [stream.all_gather(_sample_of_batch(batch)[tf.newaxis])], tf.bool
            ),
            lambda: tf.constant(True),
        )
        with tf.control_dependencies([is_compared]):
            return tf.nest.map_structure(tf.identity, batch, expand_composites=True)

    return dataset.enumerate().map(compare_batch)


def _message(rank: int) -> str:
    return (
        "All workers pass the same rows in the same order, for each batch is divided among "
        f"them. Received: rows of worker {rank} that are not those of worker 0. If NumPy, "
        "Python or scikit-learn shuffles or splits them, seed that alike on all workers: "
        "keras.utils.set_random_seed(1), or random_state=1. Leave out what divides them, such as "
        "Dataset.shard. If each worker is to have rows of its own, set AutoShardPolicy.OFF or "
        "call strategy.distribute_datasets_from_function."
    )


def _sample_of_batch(batch: Any) -> tf.Tensor:
    """Returns a sample of a batch as `_sample` does of a dataset, in a function's graph."""
    checksum = tf.constant(0, tf.int64)
    numbers: list[tf.Tensor] = []
    leaves = tf.nest.flatten(batch, expand_composites=True)
    each = _NUMBERS // max(sum(leaf.dtype.is_floating for leaf in leaves), 1)
    for leaf in leaves:
        values = tf.reshape(leaf, [-1])
        if leaf.dtype.is_floating:
            numbers.append(_some_numbers(tf.cast(values, tf.float64), each))
        elif leaf.dtype == tf.string:
            names = tf.strings.regex_replace(values, "^.*/", "")
            checksum = _update_checksum(checksum, tf.strings.to_hash_bucket_fast(names, 2**62))
        elif leaf.dtype.is_integer or leaf.dtype.is_bool:
            checksum = _update_checksum(checksum, tf.cast(values, tf.int64))
    # 52 bits are exact in a float64.
    checksum = tf.cast(tf.math.floormod(checksum, 2**52), tf.float64)
    joined = tf.concat([*numbers, tf.zeros([_NUMBERS], tf.float64)], 0)[:_NUMBERS]
    return tf.concat([checksum[tf.newaxis], joined], 0)


def _update_checksum(checksum: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Returns a checksum updated with values, which depends on their order and wraps around."""
    places = 2 * tf.range(tf.size(values, tf.int64), dtype=tf.int64) + 1
    return checksum * 31 + tf.reduce_sum(values * places)


def _some_numbers(values: tf.Tensor, count: int) -> tf.Tensor:
    """Returns numbers from all over a vector, the largest scaled to 1; none if it is empty."""
    last = tf.cast(tf.size(values) - 1, tf.float64)
    places = tf.cast(tf.linspace(tf.constant(0.0, tf.float64), last, count), tf.int64)
    found = tf.gather(values, places[: tf.size(values) * count])
    finite = tf.where(tf.math.is_finite(found), tf.abs(found), 0.0)
    largest = tf.reduce_max(tf.concat([finite, [0.0]], 0))
    return tf.where(largest > 0, found / largest, found)


def _sample(tensors: Iterable[tf.Tensor], checksum: int) -> np.ndarray:
    """Returns a checksum of all values but floats, then floats: [1 + _NUMBERS], float64."""
    numbers: list[np.ndarray] = []
    for tensor in tensors:
        values = _some_values(tensor)
        if tensor.dtype.is_floating:
            numbers.append(_scale(values.astype(np.float64).reshape(-1)))
        else:
            is_text = values.dtype == object
            checksum = zlib.crc32(_names(values) if is_text else values.tobytes(), checksum)
    each = _NUMBERS // max(len(numbers), 1)
    flat = [values[np.linspace(0, len(values) - 1, each).astype(int)] for values in numbers]
    joined = np.concatenate([*flat, np.zeros(_NUMBERS)])[:_NUMBERS]
    return np.concatenate([[float(checksum)], joined])


def _names(texts: np.ndarray) -> bytes:
    """Returns strings without a leading directory, which may differ between hosts for a file."""
    return b"\n".join(text.rpartition(b"/")[2] for text in texts.reshape(-1))


def _scale(values: np.ndarray) -> np.ndarray:
    """Returns numbers scaled so that the largest magnitude is 1."""
    largest = np.abs(values[np.isfinite(values)]).max(initial=0.0)
    return values / largest if largest else values


def _tensors(dataset: tf.data.Dataset) -> Iterator[tf.Tensor]:
    """Yields the tensors with rows that a dataset was created from, in a fixed order."""
    for root in _roots(dataset):
        yield from _own_tensors(root)


def _roots(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    """Yields the source datasets of a dataset, which have no inputs."""
    inputs = dataset_inputs(dataset)
    if not inputs:
        yield dataset
    for one in inputs:
        yield from _roots(one)


def _own_tensors(dataset: tf.data.Dataset) -> Iterator[tf.Tensor]:
    for tensor in dataset_tensors(dataset):
        is_value = tensor.dtype not in (tf.variant, tf.resource) and not tensor.dtype.is_complex
        if is_value and tensor.shape.rank and tensor.shape.num_elements():
            yield tensor


def _shards(dataset: tf.data.Dataset) -> Iterator[int]:
    """Yields the indices of each `Dataset.shard` in a dataset, in a fixed order."""
    index = shard_index(dataset)
    if index is not None:
        yield index
    for one in dataset_inputs(dataset):
        yield from _shards(one)


def _some_values(tensor: tf.Tensor) -> np.ndarray:
    """Returns elements of a tensor from rows and columns all over it."""
    rows = np.linspace(0, tensor.shape[0] - 1, _ROWS).astype(int)
    flat = tf.gather(tensor, rows).numpy().reshape(_ROWS, -1)
    return flat[:, np.linspace(0, flat.shape[1] - 1, _COLUMNS).astype(int)]


def _is_like(sample: np.ndarray, first: np.ndarray) -> bool:
    numbers_are_close = np.allclose(sample, first, atol=_TOLERANCE, equal_nan=True)
    return sample[0] == first[0] and numbers_are_close
