"""How many bytes of ids, rows and gradients left one worker for another."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from strategies._tensorflow import ResourceVariable
from strategies.variables.growable_array import HOST
from tf_config.capacity import KEY_BYTES

# What is counted of each table, in this order.
_TRAINING, ELSEWHERE, _GRADIENTS, PREFETCHED = range(4)


class TrafficCounter:
    """Counts this worker's keys whose rows another worker has, or a server.

    Each of them is a row that came back, from whoever has it, if rows do. So the keys that all
    workers sent are the rows that all workers sent, and one number counts both.

    Args:
      tables: how many look up together.
      is_shared: whether others have rows; else nothing leaves, and nothing is counted.
    """

    def __init__(self, tables: int, is_shared: bool):
        self._tables = tables
        self._is_shared = is_shared
        with tf.init_scope(), tf.device(HOST):
            self._counts = ResourceVariable(tf.zeros([4, tables], tf.int64), trainable=False)

    def away(self, keys: tf.Tensor, stays: Callable[[], tf.Tensor]) -> tf.Tensor | None:
        """Returns how many keys are for others, int64 by table; None without others.

        Args:
          keys: that are looked up, with the number of the table first.
          stays: returns those of them whose rows are here.
        """
        if not self._is_shared:
            return None
        return tf.cast(self._by_table(keys) - self._by_table(stays()), tf.int64)

    def _by_table(self, keys: tf.Tensor) -> tf.Tensor:
        if self._tables == 1:
            return tf.shape(keys)[:1]
        numbers = tf.cast(keys[:, 0], tf.int32)
        return tf.math.bincount(numbers, minlength=self._tables, maxlength=self._tables)

    def looked_up(self, away: tf.Tensor | None, training: bool) -> None:
        """Notes keys that went, and rows that come back."""
        self._add(away, _TRAINING if training else ELSEWHERE)

    def trained(self, away: tf.Tensor | None) -> None:
        """Notes gradients that went."""
        self._add(away, _GRADIENTS)

    def prefetched(self, away: tf.Tensor) -> None:
        """Notes rows that were asked for before their step."""
        self._add(away, PREFETCHED)

    def _add(self, away: tf.Tensor | None, which: int) -> None:
        if away is None:
            return
        with tf.device(HOST):
            self._counts.scatter_add(tf.IndexedSlices(away[tf.newaxis], tf.constant([which])))

    def counts(self) -> np.ndarray:
        """Returns what was counted, int64 [tables, 4]."""
        return self._counts.numpy().T


def traffic(counts: np.ndarray, width: int, brings_rows: bool = True) -> dict[str, int]:
    """Returns the bytes of ids, rows and gradients that counts of all workers stand for.

    >>> traffic(np.array([2, 1, 2, 0]), width=4)
    {'bytes_ids': 72, 'bytes_rows': 48, 'bytes_gradients': 32}
    """
    training, elsewhere, gradients, _ = counts.tolist()
    row = 4 * width
    return {
        "bytes_ids": KEY_BYTES * (training + elsewhere),
        "bytes_rows": row * (training + elsewhere) * brings_rows,
        "bytes_gradients": row * gradients,
    }
