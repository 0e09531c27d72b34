"""Detection of workers that were given different rows for the same dataset."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from strategies._tensorflow import dataset_inputs, dataset_tensors
from strategies.collectives.base import Collectives

_ROWS, _COLUMNS = 32, 16  # of a component, that are compared
_NUMBERS = 512  # in all
# Workers on other processors compute the same numbers but for their last bits.
_TOLERANCE = 1e-3


def check_same_rows(dataset: tf.data.Dataset, collectives: Collectives) -> None:
    """Checks that all workers made a dataset from the same tensors; waits for all.

    A sample of the rows of `from_tensors` and `from_tensor_slices` is compared, which is what
    Keras makes of arrays and what lists of files are. What a function or a generator yields is not.

    >>> from strategies.collectives.base import LocalCollectives
    >>> check_same_rows(tf.data.Dataset.from_tensor_slices([1, 2]), LocalCollectives())

    Args:
      dataset: batches of all workers' rows.
      collectives: the workers.

    Raises:
      ValueError: if the rows of a worker differ from the first one's; on all workers.
    """
    if collectives.size == 1 or not tf.executing_eagerly():
        return
    mine = _sample(dataset)
    samples = collectives.all_gather(tf.constant(mine[np.newaxis])).numpy()
    others = [rank for rank in range(len(samples)) if not _is_like(samples[rank], samples[0])]
    if others:
        raise ValueError(
            "All workers pass the same rows in the same order, for each batch is divided among "
            f"them. Received: rows of worker {others[0]} that are not those of worker 0. If NumPy, "
            "Python or scikit-learn shuffles or splits them, seed that alike on all workers: "
            "keras.utils.set_random_seed(1), or random_state=1. If each worker is to have rows of "
            "its own, set AutoShardPolicy.OFF or call strategy.distribute_datasets_from_function."
        )


def _sample(dataset: tf.data.Dataset) -> np.ndarray:
    """Returns a checksum of all that is no float, and floats: [1 + _NUMBERS], float64."""
    checksum = 0
    numbers: list[np.ndarray] = []
    for tensor in _tensors(dataset):
        values = _some_values(tensor)
        if tensor.dtype.is_floating:
            numbers.append(_scaled(values.astype(np.float64).reshape(-1)))
        else:
            is_text = values.dtype == object
            checksum = zlib.crc32(_names(values) if is_text else values.tobytes(), checksum)
    each = _NUMBERS // max(len(numbers), 1)
    flat = [values[np.linspace(0, len(values) - 1, each).astype(int)] for values in numbers]
    joined = np.concatenate([*flat, np.zeros(_NUMBERS)])[:_NUMBERS]
    return np.concatenate([[float(checksum)], joined])


def _names(texts: np.ndarray) -> bytes:
    """Returns texts without what may be a directory: each host may have its own for a file."""
    return b"\n".join(text.rpartition(b"/")[2] for text in texts.reshape(-1))


def _scaled(values: np.ndarray) -> np.ndarray:
    """Returns numbers of which the largest is 1."""
    largest = np.abs(values[np.isfinite(values)]).max(initial=0.0)
    return values / largest if largest else values


def _tensors(dataset: tf.data.Dataset) -> Iterator[tf.Tensor]:
    """Yields the tensors with rows that a dataset was made from, in a fixed order."""
    for tensor in dataset_tensors(dataset):
        is_value = tensor.dtype not in (tf.variant, tf.resource) and not tensor.dtype.is_complex
        if is_value and tensor.shape.rank and tensor.shape.num_elements():
            yield tensor
    for one in dataset_inputs(dataset):
        yield from _tensors(one)


def _some_values(tensor: tf.Tensor) -> np.ndarray:
    """Returns elements of a tensor from rows and columns all over it."""
    rows = np.linspace(0, tensor.shape[0] - 1, _ROWS).astype(int)
    flat = tf.gather(tensor, rows).numpy().reshape(_ROWS, -1)
    return flat[:, np.linspace(0, flat.shape[1] - 1, _COLUMNS).astype(int)]


def _is_like(sample: np.ndarray, first: np.ndarray) -> bool:
    numbers_are_close = np.allclose(sample, first, atol=_TOLERANCE, equal_nan=True)
    return sample[0] == first[0] and numbers_are_close
