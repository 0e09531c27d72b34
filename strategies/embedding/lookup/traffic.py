"""Traffic of lookups: bytes of ids, rows and gradients that leave a worker."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from strategies.compat.tensorflow import ResourceVariable
from strategies.utils.devices import HOST
from tf_config.capacity import KEY_BYTES

# Rows of the counts, by kind of traffic.
_TRAINING, ELSEWHERE, _GRADIENTS, PREFETCHED = range(4)


class TrafficCounter:
    """Counts this worker's keys whose rows are on another worker or a server.

    For each key sent, one row comes back, unless rows are replicated. So over all workers, the
    numbers of keys and rows sent are equal, and one number counts both.

    Args:
      tables: number of tables that are looked up together.
      is_distributed: whether other tasks store rows; if not, there is no traffic to count.
    """

    def __init__(self, tables: int, is_distributed: bool):
        self._tables = tables
        self._is_distributed = is_distributed
        with tf.init_scope(), tf.device(HOST):
            self._counts = ResourceVariable(tf.zeros([4, tables], tf.int64), trainable=False)

    def remote_keys(self, keys: tf.Tensor, local_keys: Callable[[], tf.Tensor]) -> tf.Tensor | None:
        """Returns the number of keys for other tasks, int64 by table; None if not distributed.

        Args:
          keys: keys that are looked up, with the number of the table in the first column.
          local_keys: returns the keys whose rows are on this worker.
        """
        if not self._is_distributed:
            return None
        return tf.cast(self._by_table(keys) - self._by_table(local_keys()), tf.int64)

    def _by_table(self, keys: tf.Tensor) -> tf.Tensor:
        if self._tables == 1:
            return tf.shape(keys)[:1]
        numbers = tf.cast(keys[:, 0], tf.int32)
        with tf.device(HOST):  # the GPU kernel of bincount does not support op determinism
            return tf.math.bincount(numbers, minlength=self._tables, maxlength=self._tables)

    def record_lookup(self, remote: tf.Tensor | None, training: bool) -> None:
        """Records keys that were sent and their rows."""
        self._add(remote, _TRAINING if training else ELSEWHERE)

    def record_gradients(self, remote: tf.Tensor | None) -> None:
        """Records gradients that were sent."""
        self._add(remote, _GRADIENTS)

    def record_prefetched(self, remote: tf.Tensor) -> None:
        """Records rows that were prefetched."""
        self._add(remote, PREFETCHED)

    def _add(self, remote: tf.Tensor | None, which: int) -> None:
        if remote is None:
            return
        with tf.device(HOST):
            self._counts.scatter_add(tf.IndexedSlices(remote[tf.newaxis], tf.constant([which])))

    def counts(self) -> np.ndarray:
        """Returns all counts, int64 [tables, 4]."""
        return self._counts.numpy().T


def traffic_bytes(counts: np.ndarray, row: int, brings_rows: bool = True) -> dict[str, int]:
    """Returns the bytes of ids, rows and gradients for the counts of all workers.

    >>> traffic_bytes(np.array([2, 1, 2, 0]), row=16)
    {'bytes_ids': 72, 'bytes_rows': 48, 'bytes_gradients': 32}

    Args:
      counts: a row of `TrafficCounter.counts`.
      row: bytes of a row in an exchange.
      brings_rows: whether rows are exchanged, too.
    """
    training, elsewhere, gradients, _ = counts.tolist()
    return {
        "bytes_ids": KEY_BYTES * (training + elsewhere),
        "bytes_rows": row * (training + elsewhere) * brings_rows,
        "bytes_gradients": row * gradients,
    }
