"""Interface between a lookup and the shards that store the rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import tensorflow as tf

from strategies.embedding.lookup.prefetch_queue import PrefetchQueue
from strategies.embedding.lookup.traffic import TrafficCounter
from strategies.utils.assertions import assert_in_step


@dataclass(frozen=True)
class LookupResult:
    """Result of a lookup.

    Attributes:
      values: values of the keys, float32 [n, width].
      rows: rows of the scattered gradient, int64 [m]; -1 for none.
      are_distinct: whether `rows` contains each row once.
      scatter_gradient: sends the gradient of `values` to the owners of the rows; returns the
        received gradient, [m, width].
    """

    values: tf.Tensor
    rows: tf.Tensor
    are_distinct: bool
    scatter_gradient: Callable[[tf.Tensor], tf.Tensor]


class LookupRouter(Protocol):
    """Routes keys to the shards that have their rows, and gradients back.

    Attributes:
      traffic: counter of the keys, rows and gradients that leave this worker.
    """

    traffic: TrafficCounter

    def look_up(self, keys: tf.Tensor, training: bool, starts_step: bool) -> LookupResult:
        """Looks up the rows of keys.

        Args:
          keys: number of the table, id and number of its occurrences, int64 [n, 3], each id once.
          training: whether ids get rows.
          starts_step: whether this is the first lookup of a step.
        """

    def reduce(self, gradient: tf.IndexedSlices) -> tf.IndexedSlices:
        """Sums scattered gradients over the workers if necessary; returns each row once."""

    def prefetch(self, queue: PrefetchQueue, keys: np.ndarray, starts_step: bool) -> None:
        """Submits the lookup of a future step to a queue."""

    def clear_prefetched(self) -> None:
        """Discards the results of all lookups submitted so far."""


def check_sizes(bounds: dict[str, int], sizes: tf.Tensor) -> None:
    """Ends the step with an error, on all workers, if a table has more ids than `input_dim`."""
    for (name, bound), size in zip(bounds.items(), tf.unstack(sizes, len(bounds)), strict=True):
        capacity = tf.constant(bound, tf.int64)
        assert_in_step(
            size <= capacity,
            [
                f"The table {name!r} cannot hold more than input_dim ids. Received:", size,
                "ids for input_dim =", capacity,
                "Raise it, leave it out, or use admission or overflow='share'.",
            ],
        )  # fmt: skip
