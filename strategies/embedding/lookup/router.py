"""Interface between a lookup and the shards that store the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import tensorflow as tf

from strategies.embedding.config import TableConfig
from strategies.embedding.lookup.batch_keys import BatchKeys
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
      penalties: factor of each key's squared row in the L2 penalty, float32 [n]; None without one.
    """

    values: tf.Tensor
    rows: tf.Tensor
    are_distinct: bool
    scatter_gradient: Callable[[tf.Tensor], tf.Tensor]
    penalties: tf.Tensor | None = None


class LookupRouter(Protocol):
    """Routes keys to the shards that have their rows, and gradients back.

    [Note: admission per step]
    Whether an id gets a row is decided once a step, from all of its occurrences. So the replicas of
    a worker look up together, as the workers do: otherwise, if the second replica's occurrences
    admitted an id, the gradient of the first replica's occurrences would be lost. Each owner adds
    up all occurrences of an id (`ShardLookup._find_or_insert`), inserts the admitted ids, and only
    then returns rows. Without admission, an id gets its row at the first occurrence anyway.

    Attributes:
      traffic: counter of the keys, rows and gradients that leave this worker.
    """

    traffic: TrafficCounter

    def look_up(
        self, keys: Sequence[tf.Tensor], training: bool, starts_step: bool
    ) -> list[LookupResult]:
        """Looks up the rows of keys; returns a result for each replica.

        Args:
          keys: keys of each replica that looks up: number of the table, id and number of its
            occurrences, int64 [n, 3], each id once.
          training: whether ids get rows.
          starts_step: whether this is the first lookup of a step.
        """

    def reduce(self, gradient: tf.IndexedSlices) -> tf.IndexedSlices:
        """Sums scattered gradients over the workers if necessary; returns each row once."""

    def prefetch(self, queue: PrefetchQueue, keys: np.ndarray, starts_step: bool) -> None:
        """Submits the lookup of a future step to a queue."""

    def exchange_ahead(self, keys: BatchKeys) -> None:
        """Lets each step exchange the rows of the next batch; see [Note: rows ahead of time].

        Args:
          keys: the keys of the next batches.
        """

    def clear_prefetched(self) -> None:
        """Discards the results of all lookups submitted so far."""

    def forget_copies(self) -> None:
        """Forgets this worker's copies of rows that are elsewhere, because they may have changed.

        There are none with changes that their owner does not have.
        """


def join(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    """Concatenates tensors of the replicas along the first dimension."""
    return parts[0] if len(parts) == 1 else tf.concat(parts, 0)


def split(joined: tf.Tensor, parts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Splits a tensor along the first dimension into parts with the lengths of `parts`.

    >>> parts = [tf.constant([1]), tf.constant([2, 3])]
    >>> [each.numpy().tolist() for each in split(join(parts), parts)]
    [[1], [2, 3]]
    """
    if len(parts) == 1:
        return [joined]
    return tf.split(joined, tf.stack([tf.shape(each)[0] for each in parts]), num=len(parts))


def split_penalties(values: tf.Tensor, width: int) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Splits the values of a `ShardLookup` into rows, [n, width], and penalties, [n], if any."""
    if values.shape[1] == width:
        return values, None
    return values[:, :width], values[:, width]


def check_limits(tables: Sequence[TableConfig], excess: tf.Tensor) -> None:
    """Fails the step on all workers if a table has too many ids.

    Args:
      tables: the tables that `ShardLookup.limited` returns.
      excess: the sum of what `ShardLookup.excess` returns over all shards.
    """
    for table, number in zip(tables, tf.unstack(excess, len(tables)), strict=True):
        capacity = tf.constant(table.input_dim, tf.int64)
        if table.overflow == "evict":
            assert_in_step(
                tf.equal(number, 0),
                [
                    f"A step cannot use more ids of the table {table.name!r} than there is room "
                    "for, because it evicts no row that it uses itself. Received:", number,
                    "ids without room for input_dim =", capacity, "of which each worker or server "
                    "has an equal part. Raise input_dim, or use smaller batches.",
                ],
            )  # fmt: skip
        else:
            assert_in_step(
                number <= capacity,
                [
                    f"The table {table.name!r} cannot hold more than input_dim ids. Received:",
                    number, "ids for input_dim =", capacity, "Raise input_dim, omit it, or use "
                    "admission, overflow='evict' or overflow='share'.",
                ],
            )  # fmt: skip
