"""The way from a lookup to the rows and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import tensorflow as tf

from strategies.collectives import Collectives
from strategies.embedding.lookup.all_to_all import AllToAll
from strategies.embedding.lookup.prefetch_queue import PrefetchQueue
from strategies.embedding.lookup.traffic import TrafficCounter
from strategies.embedding.shard.lookup import ShardLookup
from strategies.reduction.sparse import unique


@dataclass(frozen=True)
class Found:
    """What a lookup found.

    Attributes:
      values: of the keys, float32 [n, width].
      rows: those that a gradient arrives at, int64 [m], -1 for none.
      are_distinct: whether each row is named once.
      forth: takes a gradient of `values` to where it arrives, [m, width].
    """

    values: tf.Tensor
    rows: tf.Tensor
    are_distinct: bool
    forth: Callable[[tf.Tensor], tf.Tensor]


class LookupRouter(Protocol):
    """How keys come to their rows, and gradients too; `sent` counts them."""

    sent: TrafficCounter

    def found(self, keys: tf.Tensor, training: bool, begins: bool) -> Found:
        """Returns the rows of keys.

        Args:
          keys: number of the table, id and count, int64 [n, 3], each id once.
          training: whether ids get rows.
          begins: whether a step begins with it.
        """

    def total(self, gradient: tf.IndexedSlices) -> tf.IndexedSlices:
        """Returns the gradient that the rows change by, from what arrived, each row once."""

    def ask(self, ahead: PrefetchQueue, keys: np.ndarray, begins: bool) -> None:
        """Asks for the rows of keys that a step will look up; does not wait for them."""

    def forget(self) -> None:
        """Sees to it that no step uses what was asked for until now."""


class ShardedRouter:
    """The way to the workers that have the rows.

    Args:
      exchange: between the workers.
      finder: finds the rows that this worker has.
    """

    def __init__(self, exchange: AllToAll, finder: ShardLookup):
        self._exchange = exchange
        self._finder = finder
        self.sent = TrafficCounter(finder.count, exchange.collectives.size > 1)

    def found(self, keys: tf.Tensor, training: bool, begins: bool) -> Found:
        """Returns the rows of keys; all workers call it together."""
        trip = self._exchange.sent(keys)
        away = self.sent.away(keys, trip.stays)
        self.sent.looked_up(away, training)
        in_single_worker_scope = self._exchange.collectives.size == 1
        rows, values = self._finder(trip.keys, training, begins, in_single_worker_scope)
        bounds = self._finder.bounds
        if training and bounds:
            sizes = self._exchange.collectives.all_reduce([self._finder.sizes()])[0]
            check_sizes(bounds, sizes)

        def forth(gradient: tf.Tensor) -> tf.Tensor:
            self.sent.trained(away)
            return trip.forth(gradient)

        are_distinct = in_single_worker_scope and not self._finder.is_shared
        return Found(trip.back(values), rows, are_distinct, forth)

    def total(self, gradient: tf.IndexedSlices) -> tf.IndexedSlices:
        """Returns the same: it is with the owners of the rows."""
        return gradient

    def ask(self, ahead: PrefetchQueue, keys: np.ndarray, begins: bool) -> None:
        """Does nothing: workers exchange rows in the same steps."""

    def forget(self) -> None:
        """Does nothing: nothing was asked for."""


class ReplicatedRouter:
    """The way to rows that all workers have; what comes in training goes to all of them.

    All of them add the same ids in the same order and change the same rows by the same numbers,
    so that their copies stay equal.

    Args:
      collectives: the workers.
      finder: finds the rows.
    """

    def __init__(self, collectives: Collectives, finder: ShardLookup):
        self._collectives = collectives
        self._finder = finder
        self.sent = TrafficCounter(finder.count, collectives.size > 1)

    def found(self, keys: tf.Tensor, training: bool, begins: bool) -> Found:
        """Returns the rows of keys; in training, all workers call it together."""
        away = None
        if training:
            away = self.sent.away(keys, lambda: keys[:0])
            if away is not None:
                away *= self._collectives.size - 1
            self.sent.looked_up(away, training)
            added, _ = self._finder(self._collectives.all_gather(keys), True, begins)
            check_sizes(self._finder.bounds, self._finder.sizes())
            with tf.control_dependencies([added]):
                keys = tf.identity(keys)
        rows, values = self._finder(keys, False, False)

        def forth(gradient: tf.Tensor) -> tf.Tensor:
            self.sent.trained(away)
            return gradient

        return Found(values, rows, True, forth)

    def total(self, gradient: tf.IndexedSlices) -> tf.IndexedSlices:
        """Returns the gradient of all workers."""
        return of_all_workers(self._collectives, gradient)

    def ask(self, ahead: PrefetchQueue, keys: np.ndarray, begins: bool) -> None:
        """Does nothing: the rows are here."""

    def forget(self) -> None:
        """Does nothing: nothing was asked for."""


def of_all_workers(collectives: Collectives, gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """Returns the sum of all workers' gradients, each row once; all of them call it."""
    values = collectives.all_gather(gradient.values)
    rows = collectives.all_gather(gradient.indices)
    return unique(tf.IndexedSlices(values, rows, gradient.dense_shape))


def check_sizes(bounds: dict[str, int], sizes: tf.Tensor) -> None:
    """Ends the step, on all workers, if a table has more ids than it may have."""
    for (name, bound), size in zip(bounds.items(), tf.unstack(sizes, len(bounds)), strict=True):
        most = tf.constant(bound, tf.int64)
        tf.debugging.Assert(
            size <= most,
            [
                f"The table {name!r} has at most input_dim ids. Received:", size,
                "ids for input_dim =", most,
                "Raise it, leave it out, or use admission or overflow='share'.",
            ],
        )  # fmt: skip
