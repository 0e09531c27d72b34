"""The rows of a layer as a part of what TensorFlow and Keras save."""

from __future__ import annotations

import io
from collections.abc import Mapping, MutableMapping
from typing import Any, Protocol

import numpy as np
import tensorflow as tf


class HasRows(Protocol):
    """A layer whose rows are arrays by name."""

    def packed_rows(self) -> Mapping[str, np.ndarray]:
        """Returns the rows of all workers, which all call it."""

    def unpack_rows(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Sets the rows, at once or when the layer is built."""


class RowsInCheckpoint(tf.train.experimental.PythonState):
    """A layer's rows in a `tf.train.Checkpoint`.

    Args:
      layer: has the rows.
    """

    def __init__(self, layer: HasRows):
        super().__init__()
        self._layer = layer

    def serialize(self) -> bytes:
        """Returns the rows as the bytes of an .npz file."""
        file = io.BytesIO()
        np.savez(file, allow_pickle=False, **dict(self._layer.packed_rows()))
        return file.getvalue()

    def deserialize(self, string_value: bytes) -> None:
        """Sets the rows to what `serialize` returned."""
        with np.load(io.BytesIO(string_value)) as arrays:
            self._layer.unpack_rows(dict(arrays))


def to_store(arrays: Mapping[str, np.ndarray], store: MutableMapping[str, Any]) -> None:
    """Puts arrays into what Keras saves of a layer."""
    for name, array in arrays.items():
        store[name.replace("/", ".")] = array


def from_store(store: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns the arrays that `to_store` put there."""
    return {_name(key): np.array(store[key]) for key in store.keys()}


def serialized(api: Any, value: Any) -> dict[str, Any]:
    """Returns what Keras makes an initializer or an optimizer from, as plain values.

    Keras numbers objects by their place in memory, where another one may be by then, and writes
    the number into what it returned before. That would make one table look like two.

    Args:
      api: the Keras module that has `serialize` for it.
      value: the initializer or optimizer.
    """
    fields = api.serialize(value)
    return {name: each for name, each in fields.items() if name != "shared_object_id"}


def _name(key: str) -> str:
    """Returns the name that a key stands for.

    >>> _name("0.slot.momentum")
    '0/slot/momentum'
    """
    return "/".join(key.split(".", 2)) if ".slot." in key else key.replace(".", "/", 1)
