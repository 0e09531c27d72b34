"""Saving of a layer's rows with its model, in the formats of TensorFlow and Keras."""

from __future__ import annotations

import io
import zlib
from collections.abc import Mapping, MutableMapping
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from strategies.files.atomic_files import write_npz

_CHECKSUM = "crc32"


class HasRows(Protocol):
    """A layer whose rows are saved as arrays by name."""

    def snapshot_rows(self) -> Mapping[str, np.ndarray]:
        """Returns the rows of all workers; all workers must call it."""

    def restore_rows(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Restores the rows, immediately or when the layer is built."""


class RowsInCheckpoint(tf.train.experimental.PythonState):
    """A layer's rows in a `tf.train.Checkpoint`.

    Args:
      layer: the layer.
    """

    def __init__(self, layer: HasRows):
        super().__init__()
        self._layer = layer

    def serialize(self) -> bytes:
        """Returns the rows as the bytes of an .npz file."""
        file = io.BytesIO()
        write_npz(file, self._layer.snapshot_rows())
        return file.getvalue()

    def deserialize(self, string_value: bytes) -> None:
        """Restores the rows from the bytes of an .npz file.

        Raises:
          ValueError: if the bytes are damaged.
        """
        try:
            with np.load(io.BytesIO(string_value)) as file:
                arrays = dict(file)
        except Exception as error:  # from zip checksums or NumPy headers
            raise ValueError(_damaged_error(error)) from error
        self._layer.restore_rows(arrays)


def to_store(arrays: Mapping[str, np.ndarray], store: MutableMapping[str, Any]) -> None:
    """Adds arrays and their checksum to the store of a layer that Keras saves."""
    for name, array in arrays.items():
        store[name.replace("/", ".")] = array
    if arrays:
        store[_CHECKSUM] = np.uint32(_checksum_of(arrays))


def from_store(store: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns the arrays that `to_store` added; files of version 0.1.0 have no checksum.

    Raises:
      ValueError: if the arrays are damaged.
    """
    try:
        arrays = {_name(key): np.array(store[key]) for key in store.keys()}  # noqa: SIM118  # HDF5's
    except (OSError, KeyError, RuntimeError, TypeError) as error:
        raise ValueError(_damaged_error(error)) from error
    checksum = arrays.pop(_CHECKSUM, None)
    if checksum is not None and checksum != _checksum_of(arrays):
        raise ValueError(_damaged_error("other values than were saved"))
    return arrays


def serialize_config(api: Any, value: Any) -> dict[str, Any]:
    """Returns the configuration of an initializer or optimizer without `shared_object_id`.

    Keras derives this id from memory addresses, which may be reused, and writes it into
    configurations that it returned before. That would make one table look like two.

    Args:
      api: Keras module with the `serialize` function for the value.
      value: initializer or optimizer.
    """
    fields = api.serialize(value)
    return {name: each for name, each in fields.items() if name != "shared_object_id"}


def _checksum_of(arrays: Mapping[str, np.ndarray]) -> int:
    crc = 0
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        crc = zlib.crc32(f"{name} {array.dtype} {np.shape(arrays[name])}".encode(), crc)
        crc = zlib.crc32(array.tobytes(), crc)
    return crc


def _damaged_error(received: object) -> str:
    return (
        f"The file of a layer's rows must be complete and unchanged. Received: {received}. No row "
        "was changed. Restore another file."
    )


def _name(key: str) -> str:
    """Returns the array's name for a key of the store.

    >>> _name("0.slot.momentum")
    '0/slot/momentum'
    """
    return "/".join(key.split(".", 2)) if ".slot." in key else key.replace(".", "/", 1)
