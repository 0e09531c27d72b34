"""Writing of files by a parameter server, whose values do not cross the network then."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

_BUCKETS = 2**63 - 1


class ServerWriter:
    """Writes results of functions to files on a parameter server.

    Args:
      call: calls functions on the server; see `RemoteTableShard.call`.
    """

    def __init__(self, call: Callable[..., Any]):
        self._call = call

    def sees(self, path: Path, content: bytes) -> bool:
        """Returns whether the server finds a file with this content at this path."""
        return self._call(_read, np.array(str(path), object), idempotent=True) == content

    def write(
        self,
        function: Callable[..., Sequence[tf.Tensor]],
        *arrays: Any,
        paths: Sequence[Path],
        headers: Sequence[bytes],
        state: Iterable[Hashable],
    ) -> list[str]:
        """Writes each tensor that a function returns to a file, after the lock is released.

        Args:
          function: see `RemoteTableShard.call`.
          *arrays: arguments of the function.
          paths: the file of each tensor.
          headers: the bytes that precede those of each tensor in its file.
          state: see `RemoteTableShard.call`.

        Returns:
          The hash of each file; see `hash_of`.

        Raises:
          OSError: if the server cannot write a file.
        """

        def read(paths: tf.Tensor, headers: tf.Tensor, *tensors: tf.Tensor) -> Any:
            return paths, headers, function(*tensors)

        names = np.array([str(path) for path in paths], object)
        try:
            hashes = self._call(
                read, names, np.array([*headers], object), *arrays,
                state=state, idempotent=True, finish=_write_all,
            )  # fmt: skip
        except tf.errors.OpError as error:
            raise OSError(error.message.splitlines()[0]) from None
        return [_text(number) for number in hashes]


def hash_of(content: bytes) -> str:
    """Returns the hash of a file that a server has written: FarmHash's 64-bit fingerprint.

    TensorFlow has no operation for CRC-32.
    """
    return _text(tf.strings.to_hash_bucket_fast([content], _BUCKETS)[0])


def _text(number: Any) -> str:
    return f"farmhash64:{int(number)}"


def _read(path: tf.Tensor) -> tf.Tensor:
    is_there = tf.size(tf.io.matching_files(path)) > 0
    return tf.cond(is_there, lambda: tf.io.read_file(path), lambda: tf.constant(b""))


def _write_all(results: tuple[tf.Tensor, tf.Tensor, Sequence[tf.Tensor]]) -> tf.Tensor:
    paths, headers, tensors = results
    hashes = []
    for position, tensor in enumerate(tensors):
        content = tf.strings.join([headers[position], _raw_bytes(tensor)])
        with tf.control_dependencies(
            [tf.raw_ops.WriteFile(filename=paths[position], contents=content)]
        ):
            hashes.append(tf.strings.to_hash_bucket_fast(content, _BUCKETS))
    return tf.stack(hashes)


def _raw_bytes(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the bytes of a tensor's elements as one string."""
    # A serialized tensor ends with the bytes of its elements: they are the last field that is set.
    serialized = tf.io.serialize_tensor(tensor)
    size = tf.size(tensor) * tensor.dtype.size
    return tf.strings.substr(serialized, tf.strings.length(serialized) - size, size)
