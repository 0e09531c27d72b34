"""Collectives among workers of one host, which copy and sum in shared memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import tensorflow as tf

from strategies.collectives.base import RowCounts, StreamKeeper
from strategies.collectives.dtypes import accumulation_dtype, check_is_numeric, reshape_like
from strategies.collectives.shared_memory import transfers
from strategies.collectives.shared_memory.channel import Channel
from strategies.collectives.shared_memory.host import Host
from strategies.collectives.shared_memory.stream import Stream
from strategies.utils.devices import HOST

_Transfer = Callable[[Channel, list[np.ndarray], str], list[np.ndarray]]

# Dtypes that NumPy lacks, and the dtypes in which their values are moved.
_CARRIERS = {tf.bfloat16: tf.uint16}


class SharedMemoryCollectives(StreamKeeper):
    """Collectives among the workers of one host.

    Args:
      host: this worker's host.
      has_thread: whether operations in functions run in a thread of their own. At most one stream
        of a process can do without; see `Stream`.
    """

    def __init__(self, host: Host, has_thread: bool = True):
        super().__init__()
        self.rank = host.rank
        self.size = host.size
        self._host = host
        self.calls_python = not has_thread
        self._stream = Stream(has_thread)
        self._channel = host.new_channel()

    def _make_stream(self) -> SharedMemoryCollectives:
        return SharedMemoryCollectives(self._host)

    def all_reduce(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the sums over all workers; see `Collectives`."""
        with tf.device(HOST):
            vectors = [
                tf.reshape(tf.cast(tensor, accumulation_dtype(tensor.dtype)), [-1])
                for tensor in tensors
            ]
            sums = self._run(transfers.sum_vectors, vectors, [vector.dtype for vector in vectors])
            return [
                tf.cast(reshape_like(tensor, total), tensor.dtype)
                for tensor, total in zip(tensors, sums, strict=True)
            ]

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the workers' tensors concatenated along axis 0; see `Collectives`."""
        (joined,) = self._move(transfers.gather, tensor)
        return tf.ensure_shape(joined, [None, *tensor.shape[1:]])

    def broadcast(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the first worker's tensor; see `Collectives`."""
        (copy,) = self._move(transfers.broadcast, tensor)
        return tf.ensure_shape(copy, tensor.shape)

    def reduce_vectors(self, vectors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the sums over all workers on the first one, and the same vectors on the others.

        Args:
          vectors: vectors of NumPy dtypes, of the same lengths and dtypes on every worker.
        """
        reduce = partial(transfers.sum_vectors, only_first=True)
        return self._run_on_vectors(reduce, vectors, self.rank == 0)

    def broadcast_vectors(self, vectors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the first worker's vectors.

        Args:
          vectors: vectors of NumPy dtypes, of the same lengths and dtypes on every worker.
        """
        return self._run_on_vectors(transfers.broadcast_vectors, vectors, self.rank > 0)

    def all_to_all(
        self, tensor: tf.Tensor, counts: tf.Tensor, known: RowCounts | None = None
    ) -> tuple[tf.Tensor, RowCounts]:
        """Returns the rows that the workers sent to this one; see `Collectives`."""
        rows, received = self._move(transfers.all_to_all, tensor, tf.cast(counts, tf.int64))
        received = tf.cast(tf.ensure_shape(received, [self.size]), counts.dtype)
        rows = tf.ensure_shape(rows, [None, *tensor.shape[1:]])
        return rows, RowCounts(received, tf.constant(0))

    def _run(
        self, operation: _Transfer, tensors: Sequence[tf.Tensor], dtypes: Sequence[tf.DType]
    ) -> list[tf.Tensor]:
        return self._stream.run(partial(operation, self._channel), tensors, dtypes)

    def _run_on_vectors(
        self, operation: _Transfer, vectors: Sequence[tf.Tensor], has_results: bool
    ) -> list[tf.Tensor]:
        """Runs an operation; returns its results or, if this worker gets none, the vectors."""
        dtypes = [vector.dtype for vector in vectors] if has_results else []
        with tf.device(HOST):
            results = self._run(operation, vectors, dtypes) or list(vectors)
        pairs = zip(results, vectors, strict=True)
        return [tf.ensure_shape(result, vector.shape) for result, vector in pairs]

    def _move(self, operation: _Transfer, tensor: tf.Tensor, *others: tf.Tensor) -> list[tf.Tensor]:
        """Runs an operation that only moves a tensor's values, whose bits do not change."""
        check_is_numeric(tensor.dtype)
        carrier = _CARRIERS.get(tensor.dtype)
        with tf.device(HOST):
            sent = tensor if carrier is None else tf.bitcast(tensor, carrier), *others
            moved, *results = self._run(operation, sent, [value.dtype for value in sent])
            moved = moved if carrier is None else tf.bitcast(moved, tensor.dtype)
            return [moved, *results]
