"""Lookup of rows that are replicated on all workers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from strategies.collectives import Collectives
from strategies.embedding.lookup.batch_keys import BatchKeys
from strategies.embedding.lookup.prefetch_queue import PrefetchQueue
from strategies.embedding.lookup.router import LookupResult, check_limits, join
from strategies.embedding.lookup.traffic import TrafficCounter
from strategies.embedding.shard.shard_lookup import ShardLookup
from strategies.reduction.sparse import all_reduce


class ReplicatedRouter:
    """Looks up keys in this worker's copy of the rows; in training, all workers get all keys.

    All workers insert the same ids in the same order and apply the same updates to the same rows,
    so their copies stay equal.

    Args:
      collectives: collectives among the workers.
      shard_lookup: lookup in this worker's copy.
    """

    def __init__(self, collectives: Collectives, shard_lookup: ShardLookup):
        self._collectives = collectives
        self._shard_lookup = shard_lookup
        self.traffic = TrafficCounter(shard_lookup.count, collectives.size > 1)

    def look_up(
        self, keys: Sequence[tf.Tensor], training: bool, starts_step: bool
    ) -> list[LookupResult]:
        """Looks up the rows of keys; in training, all workers must call it together."""
        if not training:
            return [self._find(each, None, None) for each in keys]
        # Each worker inserts the keys of all, see [Note: admission per step] in router.py, and then
        # finds its own.
        own = join(keys)
        of_all, _ = self._shard_lookup(self._collectives.all_gather(own), True, starts_step)
        check_limits(self._shard_lookup.limited, self._shard_lookup.excess())
        results = []
        for each in keys:
            remote = self.traffic.remote_keys(each, lambda each=each: each[:0])  # type: ignore[misc]
            if remote is not None:
                remote *= self._collectives.size - 1
            self.traffic.record_lookup(remote, training)
            with tf.control_dependencies([of_all]):
                results.append(self._find(tf.identity(each), remote, of_all))
        return results

    def _find(
        self, keys: tf.Tensor, remote: tf.Tensor | None, of_all: tf.Tensor | None
    ) -> LookupResult:
        """Returns the result for keys; in training, `of_all` are the rows of all workers' keys."""
        rows, values = self._shard_lookup(keys, False, False)
        has_penalty = of_all is not None and self._shard_lookup.has_penalty
        penalties = self._shard_lookup.penalties(keys, rows, of_all) if has_penalty else None

        def scatter_gradient(gradient: tf.Tensor) -> tf.Tensor:
            self.traffic.record_gradients(remote)
            return gradient

        return LookupResult(values, rows, True, scatter_gradient, penalties)

    def reduce(self, gradient: tf.IndexedSlices) -> tf.IndexedSlices:
        """Returns the sum of all workers' gradients; all workers must call it together."""
        return all_reduce(gradient, self._collectives)

    def prefetch(self, queue: PrefetchQueue, keys: np.ndarray, starts_step: bool) -> None:
        """Does nothing: the rows are on this worker."""

    def exchange_ahead(self, keys: BatchKeys) -> None:
        """Does nothing: each worker has all rows."""

    def clear_prefetched(self) -> None:
        """Does nothing: there are no prefetched lookups."""

    def forget_copies(self) -> None:
        """Does nothing: all workers change their copies together."""
