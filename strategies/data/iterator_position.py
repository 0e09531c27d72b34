"""Positions of iterators in their data, which checkpoints keep so that nothing is read again.

[Note: two positions]
TensorFlow saves an iterator with all stages of its pipeline, such as a shuffle with its buffer and
with how many orders it has made. A stage whose input has ended drops the stages before it, so the
state of an iterator at its end lacks them, and it depends on how fast a `prefetch` reads. The
number of orders belongs to the dataset: without it, a new process would shuffle the next epoch as
an earlier one. So a second iterator over the same data is kept from which nothing is read. It has
all stages, and its state is saved with that of the iterator which is read.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import tensorflow as tf

from strategies.compat.tensorflow import dataset_inputs, iterator_components
from strategies.utils.devices import HOST

# The names of an iterator's state, and of that of the iterator from which nothing is read.
_NAMES = ["iterator", "unread"]
_SPECS = [""] * len(_NAMES)
_FAIL = 2  # tf.data's ExternalStatePolicy.FAIL: not even with a warning


class IteratorPosition:
    """Saves positions of the iterators over a dataset, one after another.

    >>> import tempfile
    >>> dataset = tf.data.Dataset.range(4)
    >>> iterator = iter(dataset)
    >>> position = IteratorPosition(iterator)
    >>> next(iterator).numpy()
    np.int64(0)
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     prefix = Path(directory) / "position"
    ...     files = write_position(prefix, position.of(iterator))
    ...     again = iter(dataset)
    ...     _ = restore_position(again, prefix)
    >>> [number.numpy() for number in again]
    [np.int64(1), np.int64(2), np.int64(3)]

    Args:
      iterator: an iterator over a `tf.data.Dataset` or a distributed dataset, from which nothing
        has been read yet.
    """

    def __init__(self, iterator: Any):
        self._unread = None
        state = _state_of(iterator)
        if state is not None:
            # The shuffles of the dataset count each iterator; restoring a state of before takes
            # that back.
            self._unread = _new_iterator(iterator)
            _restore(self._unread, state)

    def of(self, iterator: Any) -> list[tf.Tensor] | None:
        """Returns the position of an iterator, or None if TensorFlow cannot save it.

        TensorFlow can save neither the state of Python functions and generators, nor that of
        operations such as `tf.random.uniform`. The state of an iterator with a cache would be all
        the data, which a new process could read as well, so there is none.

        The position refers to what the iterator has read ahead; the iterator may continue.
        """
        states = [_state_of(each) for each in (iterator, self._unread)]
        return None if any(state is None for state in states) else states


def write_position(prefix: Path, position: list[tf.Tensor]) -> list[Path]:
    """Writes a position to files whose names begin with `prefix`; returns the files.

    Raises:
      OSError: if a file cannot be written.
    """
    try:
        tf.raw_ops.SaveV2(
            prefix=str(prefix), tensor_names=_NAMES, shape_and_slices=_SPECS, tensors=position
        )
    except tf.errors.ResourceExhaustedError as error:
        raise OSError(errno.ENOSPC, error.message) from None
    except tf.errors.OpError as error:
        raise OSError(errno.EIO, error.message) from None
    return files_of_position(prefix)


def files_of_position(prefix: Path) -> list[Path]:
    """Returns the files that `write_position` has written."""
    return sorted(prefix.parent.glob(f"{prefix.name}.*"))


def restore_position(iterator: Any, prefix: Path) -> IteratorPosition:
    """Moves a new iterator over the same data to a position that `write_position` wrote.

    The orders of later epochs are those that would have followed.

    Args:
      iterator: an iterator from which nothing has been read.
      prefix: the beginning of the names of the files.

    Raises:
      ValueError: if a file is damaged, or belongs to other data.
    """
    _components(iterator)
    try:
        state, of_unread = tf.raw_ops.RestoreV2(
            prefix=str(prefix),
            tensor_names=_NAMES,
            shape_and_slices=_SPECS,
            dtypes=[tf.variant] * len(_NAMES),
        )
        _restore(iterator, state)
        # Last, because it sets how many orders the shuffles have made.
        unread = _new_iterator(iterator)
        _restore(unread, of_unread)
    except tf.errors.OpError as error:
        raise ValueError(error.message) from None
    return IteratorPosition(unread)


def _state_of(iterator: Any) -> tf.Tensor | None:
    components = iterator_components(iterator)
    if components is None:
        return None
    resource, dataset = components
    if _has_cache(dataset):
        return None
    try:
        return tf.raw_ops.SerializeIterator(resource_handle=resource, external_state_policy=_FAIL)
    except tf.errors.OpError:
        return None


def _components(iterator: Any) -> tuple[tf.Tensor, Any]:
    components = iterator_components(iterator)
    if components is None:
        raise ValueError(f"an iterator of class {type(iterator).__name__}, which cannot be moved")
    return components


def _restore(iterator: Any, state: tf.Tensor) -> None:
    resource, _ = _components(iterator)
    tf.raw_ops.DeserializeIterator(resource_handle=resource, serialized=state)


def _new_iterator(iterator: Any) -> Any:
    """Returns an iterator over the same data, in the same place."""
    _, dataset = _components(iterator)
    with tf.device(HOST):
        return iter(dataset)


def _has_cache(dataset: Any) -> bool:
    is_cache = "Cache" in type(dataset).__name__
    return is_cache or any(map(_has_cache, dataset_inputs(dataset)))
