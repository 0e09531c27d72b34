"""Detection of workers that have different examples for the same dataset."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

import numpy as np
import tensorflow as tf

from strategies.collectives.base import Collectives
from strategies.compat.tensorflow import dataset_inputs, dataset_tensors, shard_index

_ROWS, _COLUMNS = 32, 16  # of each component, how many are compared
_NUMBERS = 512  # how many floats are compared in total
# Different processors compute the same numbers except for the last bits.
_TOLERANCE = 1e-3


def check_same_examples(dataset: tf.data.Dataset, collectives: Collectives) -> None:
    """Checks that all workers created a dataset from the same tensors; waits for all workers.

    Compares a sample of the tensors of `from_tensors` and `from_tensor_slices`, which Keras uses
    for arrays and which hold lists of files, and the index of each `shard`. The output of functions
    and generators is not compared here: see `BatchComparison`.

    >>> from strategies.collectives.base import LocalCollectives
    >>> check_same_examples(tf.data.Dataset.from_tensor_slices([1, 2]), LocalCollectives())

    Args:
      dataset: global batches.
      collectives: the workers.

    Raises:
      ValueError: if a worker's examples differ from the first worker's; on all workers.
    """
    if collectives.size == 1 or not tf.executing_eagerly():
        return
    shards = zlib.crc32(str(list(_shards(dataset))).encode())
    other = first_different(_tensors(dataset), collectives, shards)
    if other is not None:
        raise ValueError(different_examples_message(other))


def first_different(
    tensors: Iterable[tf.Tensor], collectives: Collectives, checksum: int = 0
) -> int | None:
    """Returns the rank of the first worker whose tensors differ from the first worker's, or None.

    Waits for all workers, and compares samples. Floats may differ in the last digits.

    Args:
      tensors: tensors of rank 1 or more, without complex numbers.
      collectives: the workers.
      checksum: a number that must be the same, too.
    """
    sample = _sample(tensors, checksum)
    samples = collectives.all_gather(tf.constant(sample[np.newaxis])).numpy()
    return next((r for r, one in enumerate(samples) if not _is_close(one, samples[0])), None)


def different_examples_message(rank: int, where: str = "") -> str:
    """Returns the error message for a worker whose examples differ from the first worker's.

    Args:
      rank: the worker's rank.
      where: where the examples differ, a part of the message.
    """
    return (
        "All workers must pass the same examples in the same order, because each batch is divided "
        f"among them. Received: examples of worker {rank} that differ from those of worker "
        f"0{where}, so some examples would be trained on twice, and others never. If NumPy, "
        "Python, TensorFlow or scikit-learn shuffles or splits them, use the same seed on all "
        "workers, independent of the rank: keras.utils.set_random_seed(1), shuffle(n, seed=1) or "
        "random_state=1. Read with deterministic=True, and not from a job that workers of a "
        "tf.data service share. Do not shard them yourself, for example with Dataset.shard. If "
        "each worker should have its own examples, set AutoShardPolicy.OFF or call "
        "strategy.distribute_datasets_from_function; if they only seem to differ, set "
        "AutoShardPolicy.DATA."
    )


def _sample(tensors: Iterable[tf.Tensor], checksum: int) -> np.ndarray:
    """Returns a checksum of all values except floats, then floats: [1 + _NUMBERS], float64."""
    numbers: list[np.ndarray] = []
    for tensor in tensors:
        values = _some_values(tensor)
        if tensor.dtype.is_floating:
            numbers.append(_scale(values.astype(np.float64).reshape(-1)))
        else:
            is_text = values.dtype == object
            checksum = zlib.crc32(_base_names(values) if is_text else values.tobytes(), checksum)
    each = _NUMBERS // max(len(numbers), 1)
    flat = [values[np.linspace(0, len(values) - 1, each).astype(int)] for values in numbers]
    joined = np.concatenate([*flat, np.zeros(_NUMBERS)])[:_NUMBERS]
    return np.concatenate([[float(checksum)], joined])


def _base_names(texts: np.ndarray) -> bytes:
    """Returns strings without a leading directory, because a file's may differ between hosts."""
    return b"\n".join(text.rpartition(b"/")[2] for text in texts.reshape(-1))


def _scale(values: np.ndarray) -> np.ndarray:
    """Returns numbers scaled so that the largest magnitude is 1."""
    largest = np.abs(values[np.isfinite(values)]).max(initial=0.0)
    return values / largest if largest else values


def _tensors(dataset: tf.data.Dataset) -> Iterator[tf.Tensor]:
    """Yields the tensors that a dataset was created from, in a fixed order."""
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
    """Returns elements of a tensor from evenly spaced rows and columns."""
    rows = np.linspace(0, tensor.shape[0] - 1, _ROWS).astype(int)
    flat = tf.gather(tensor, rows).numpy().reshape(_ROWS, -1)
    return flat[:, np.linspace(0, flat.shape[1] - 1, _COLUMNS).astype(int)]


def _is_close(sample: np.ndarray, first: np.ndarray) -> bool:
    numbers_are_close = np.allclose(sample, first, atol=_TOLERANCE, equal_nan=True)
    return sample[0] == first[0] and numbers_are_close
