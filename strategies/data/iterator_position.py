"""Positions of iterators in their data, which checkpoints keep so that nothing is read again.

[Note: orders of a shuffle]
TensorFlow saves an iterator with all stages of its pipeline, such as a shuffle with its buffer and
with how many orders it has made. A stage whose input has ended drops the stages before it, so the
state of an iterator near its end lacks them; when, depends on how fast a `prefetch` reads. How many
orders a shuffle has made belongs to the dataset: without it, a new process would shuffle the next
epoch as an earlier one. So an iterator over each shuffle is kept from which nothing is read, and
its state is saved, too. Its creation counts as an order. That is taken back where the pipeline
makes its shuffles at once; a shuffle before another one is only made when that one is read.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import tensorflow as tf

from strategies.compat.tensorflow import captures_dataset, dataset_inputs, iterator_components
from strategies.utils.devices import HOST

# Parts of the names of datasets that make something new for each iterator: `shuffle` and `random`.
_ORDERS = ("Shuffle", "Random")
_DATA = "data"
_FAIL = 2  # tf.data's ExternalStatePolicy.FAIL: not even with a warning


class IteratorPosition:
    """Saves positions of the iterators over a dataset, one after another.

    >>> import tempfile
    >>> dataset = tf.data.Dataset.range(4)
    >>> iterator = iter(dataset)
    >>> position = IteratorPosition.begin(iterator)
    >>> next(iterator).numpy()
    np.int64(0)
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     prefix = Path(directory) / "position"
    ...     files = write_position(prefix, position.of(iterator), "four numbers")
    ...     again = iter(dataset)
    ...     _ = restore_position(again, prefix)
    >>> [number.numpy() for number in again]
    [np.int64(1), np.int64(2), np.int64(3)]

    Args:
      unread: iterators over the shuffles of the dataset, from which nothing is read; None if
        TensorFlow cannot save the position.
    """

    def __init__(self, unread: list[Any] | None):
        self._unread = unread

    @classmethod
    def begin(cls, iterator: Any) -> IteratorPosition:
        """Returns the positions of an iterator and of those after it.

        Args:
          iterator: an iterator over a `tf.data.Dataset` or a distributed dataset, from which
            nothing has been read yet.
        """
        state = _state_of(iterator)
        if state is None:
            return cls(None)
        _, dataset = _components(iterator)
        unread = [_new_iterator(each) for each in _shuffles(dataset)]
        # See [Note: orders of a shuffle]: this takes the orders back that were just counted.
        _restore(_new_iterator(dataset), state)
        return cls(unread)

    def of(self, iterator: Any) -> list[tf.Tensor] | None:
        """Returns the position of an iterator, or None if TensorFlow cannot save it.

        TensorFlow can save neither the state of Python functions and generators, nor that of
        operations such as `tf.random.uniform`. The state of an iterator with a cache would be all
        the data, which a new process could read as well, so there is none.

        The position refers to what the iterator has read ahead; the iterator may continue.
        """
        if self._unread is None:
            return None
        states = [_state_of(each) for each in (iterator, *self._unread)]
        return None if any(state is None for state in states) else states


def write_position(prefix: Path, position: list[tf.Tensor], data: str) -> list[Path]:
    """Writes a position to files whose names begin with `prefix`; returns the files.

    Args:
      prefix: the beginning of the names of the files.
      position: the position.
      data: a description of the data, for `read_data`.

    Raises:
      OSError: if a file cannot be written.
    """
    try:
        tf.raw_ops.SaveV2(
            prefix=str(prefix),
            tensor_names=[*_names(len(position)), _DATA],
            shape_and_slices=[""] * (len(position) + 1),
            tensors=[*position, tf.constant(data)],
        )
    except tf.errors.ResourceExhaustedError as error:
        raise OSError(errno.ENOSPC, error.message) from None
    except tf.errors.OpError as error:
        raise OSError(errno.EIO, error.message) from None
    return files_of_position(prefix)


def files_of_position(prefix: Path) -> list[Path]:
    """Returns the files that `write_position` has written."""
    return sorted(prefix.parent.glob(f"{prefix.name}.*"))


def read_data(prefix: Path) -> str:
    """Returns the description of the data of a position that `write_position` wrote.

    Raises:
      ValueError: if a file is damaged.
    """
    (data,) = _read(prefix, [_DATA], [tf.string])
    return data.numpy().decode()


def restore_position(iterator: Any, prefix: Path) -> IteratorPosition:
    """Moves a new iterator over the same data to a position that `write_position` wrote.

    The orders of later epochs are those that would have followed.

    Args:
      iterator: an iterator from which nothing has been read.
      prefix: the beginning of the names of the files.

    Raises:
      ValueError: if a file is damaged, or belongs to other data.
    """
    _, dataset = _components(iterator)
    unread = [_new_iterator(each) for each in _shuffles(dataset)]
    moved = [iterator, *unread]
    states = _read(prefix, _names(len(moved)), [tf.variant] * len(moved))
    try:
        # The shuffles come last, because restoring the iterator may make new ones.
        for each, state in zip(moved, states, strict=True):
            _restore(each, state)
    except tf.errors.OpError as error:
        raise ValueError(error.message) from None
    return IteratorPosition(unread)


def _read(prefix: Path, names: list[str], dtypes: list[tf.DType]) -> list[tf.Tensor]:
    try:
        return tf.raw_ops.RestoreV2(
            prefix=str(prefix),
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            dtypes=dtypes,
        )
    except tf.errors.OpError as error:
        raise ValueError(error.message) from None


def _state_of(iterator: Any) -> tf.Tensor | None:
    components = iterator_components(iterator)
    if components is None:
        return None
    resource, dataset = components
    if _cannot_save(dataset):
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


def _new_iterator(dataset: Any) -> Any:
    with tf.device(HOST):  # where tf.data runs
        return iter(dataset)


def _names(count: int) -> list[str]:
    return ["iterator", *(f"shuffle-{number}" for number in range(count - 1))]


def _shuffles(dataset: Any) -> list[Any]:
    """Returns the stages of a pipeline that make new orders or numbers for each iterator."""
    own = [dataset] if any(word in type(dataset).__name__ for word in _ORDERS) else []
    return own + [each for one in dataset_inputs(dataset) for each in _shuffles(one)]


def _cannot_save(dataset: Any) -> bool:
    """Returns whether a stage has a cache, or uses another dataset, which cannot be inspected."""
    is_cache = "Cache" in type(dataset).__name__
    return is_cache or captures_dataset(dataset) or any(map(_cannot_save, dataset_inputs(dataset)))
