"""Lookup of rows that are sharded over the workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from strategies.embedding.lookup.all_to_all import AllToAll, SentKeys
from strategies.embedding.lookup.prefetch_queue import PrefetchQueue
from strategies.embedding.lookup.router import (
    LookupResult,
    check_limits,
    join,
    split,
    split_penalties,
)
from strategies.embedding.lookup.traffic import TrafficCounter
from strategies.embedding.shard.shard_lookup import ShardLookup
from strategies.embedding.shard.step_times import StepTimes


class ShardedRouter:
    """Routes keys to the workers that own them.

    Args:
      all_to_all: exchange of keys with their owners.
      shard_lookup: lookup in this worker's shard.
    """

    def __init__(self, all_to_all: AllToAll, shard_lookup: ShardLookup):
        self._all_to_all = all_to_all
        self._shard_lookup = shard_lookup
        self.traffic = TrafficCounter(shard_lookup.count, all_to_all.collectives.size > 1)

    def look_up(
        self, keys: Sequence[tf.Tensor], training: bool, starts_step: bool
    ) -> list[LookupResult]:
        """Looks up the rows of keys; all workers must call it together."""
        sent = [self._all_to_all.send(each) for each in keys]
        remote = [
            self.traffic.remote_keys(each, to_owners.local_keys)
            for each, to_owners in zip(keys, sent, strict=True)
        ]
        for each in remote:
            self.traffic.record_lookup(each, training)
        is_single_worker = self._all_to_all.collectives.size == 1
        received = [each.keys for each in sent]
        are_distinct = is_single_worker and len(keys) == 1
        now = self._agree_on_time() if starts_step else None
        rows, values = self._shard_lookup(join(received), training, starts_step, are_distinct, now)
        limited = self._shard_lookup.limited
        if training and limited:
            excess = self._all_to_all.collectives.all_reduce([self._shard_lookup.excess()])[0]
            check_limits(limited, excess)

        are_distinct = is_single_worker and not self._shard_lookup.is_shared
        parts = zip(sent, remote, split(rows, received), split(values, received), strict=True)
        return [
            self._result(to_owners, remote, rows, are_distinct, values)
            for to_owners, remote, rows, values in parts
        ]

    def _agree_on_time(self) -> tf.Tensor | None:
        """Returns the first worker's time if rows are evicted by it; otherwise None."""
        if not self._shard_lookup.uses_time:
            return None
        return self._all_to_all.collectives.broadcast(StepTimes.now())

    def _result(
        self,
        sent: SentKeys,
        remote: tf.Tensor | None,
        rows: tf.Tensor,
        are_distinct: bool,
        values: tf.Tensor,
    ) -> LookupResult:
        """Returns the result of one replica; `values` are those of the keys received."""
        values, penalties = split_penalties(
            sent.gather_from_owners(values), self._shard_lookup.width
        )
        return LookupResult(values, rows, are_distinct, self._scatter(sent, remote), penalties)

    def _scatter(
        self, sent: SentKeys, remote: tf.Tensor | None
    ) -> Callable[[tf.Tensor], tf.Tensor]:
        def scatter_gradient(gradient: tf.Tensor) -> tf.Tensor:
            self.traffic.record_gradients(remote)
            return sent.scatter_to_owners(gradient)

        return scatter_gradient

    def reduce(self, gradient: tf.IndexedSlices) -> tf.IndexedSlices:
        """Returns the gradient unchanged: the rows' owners have the gradients of all workers."""
        return gradient

    def prefetch(self, queue: PrefetchQueue, keys: np.ndarray, starts_step: bool) -> None:
        """Does nothing: workers exchange rows within a step."""

    def clear_prefetched(self) -> None:
        """Does nothing: there are no prefetched lookups."""

    def forget_copies(self) -> None:
        """Does nothing: each row is on one worker."""
