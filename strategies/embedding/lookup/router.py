"""Interface between a lookup and the shards that have the rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import tensorflow as tf

from strategies.assertions import assert_in_step
from strategies.embedding.lookup.prefetch_queue import PrefetchQueue
from strategies.embedding.lookup.traffic import TrafficCounter


@dataclass(frozen=True)
class LookupResult:
    """Result of a lookup.

    Attributes:
      values: values of the keys, float32 [n, width].
      rows: rows that the gradient of `values` is of once it is scattered, int64 [m]; -1 for none.
      are_distinct: whether each row is named once.
      scatter_gradient: sends a gradient of `values` to where the rows are, [m, width].
    """

    values: tf.Tensor
    rows: tf.Tensor
    are_distinct: bool
    scatter_gradient: Callable[[tf.Tensor], tf.Tensor]


class LookupRouter(Protocol):
    """Routes keys to the shards that have their rows, and gradients back.

    Attributes:
      traffic: counts what leaves this worker.
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
        """Sums the scattered gradients over the workers, as far as they are not; each row once."""

    def prefetch(self, queue: PrefetchQueue, keys: np.ndarray, starts_step: bool) -> None:
        """Submits the lookup of a coming step to a queue."""

    def clear_prefetched(self) -> None:
        """Discards the results of all lookups that were submitted so far."""


def check_sizes(bounds: dict[str, int], sizes: tf.Tensor) -> None:
    """Ends the step, on all workers, if a table has more ids than it may have."""
    for (name, bound), size in zip(bounds.items(), tf.unstack(sizes, len(bounds)), strict=True):
        capacity = tf.constant(bound, tf.int64)
        assert_in_step(
            size <= capacity,
            [
                f"The table {name!r} has at most input_dim ids. Received:", size,
                "ids for input_dim =", capacity,
                "Raise it, leave it out, or use admission or overflow='share'.",
            ],
        )  # fmt: skip
