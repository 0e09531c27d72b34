"""Lookup of rows that are sharded over the workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from strategies.embedding.lookup.all_to_all import AllToAll, SentKeys
from strategies.embedding.lookup.batch_keys import BatchKeys
from strategies.embedding.lookup.prefetch_queue import PrefetchQueue
from strategies.embedding.lookup.router import (
    LookupResult,
    check_limits,
    join,
    split,
    split_penalties,
)
from strategies.embedding.lookup.rows_ahead import RowsAhead
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
        self._ahead: RowsAhead | None = None
        self._has_trained = False

    def look_up(
        self, keys: Sequence[tf.Tensor], training: bool, starts_step: bool
    ) -> list[LookupResult]:
        """Looks up the rows of keys; all workers must call it together."""
        ahead = self._ahead if training and starts_step else None
        if ahead is None or len(keys) != ahead.replicas:
            self._has_trained = self._has_trained or training
            return self._look_up(keys, training, starts_step, self._send(keys), None)
        # See [Note: rows ahead of time] in rows_ahead.py.
        is_there, exchanged, following = ahead.take(keys)
        exchanges = tf.cond(
            is_there, lambda: exchanged, lambda: [each.exchange for each in self._send(keys)]
        )
        sent = [self._all_to_all.sent(each) for each in exchanges]
        results = self._look_up(keys, training, starts_step, sent, is_there)
        ahead.exchange(following)
        return results

    def _send(self, keys: Sequence[tf.Tensor]) -> list[SentKeys]:
        return [self._all_to_all.send(each) for each in keys]

    def _look_up(
        self,
        keys: Sequence[tf.Tensor],
        training: bool,
        starts_step: bool,
        sent: Sequence[SentKeys],
        is_there: tf.Tensor | None,
    ) -> list[LookupResult]:
        """Looks up keys that were sent.

        Args:
          keys: see `look_up`.
          training: see `look_up`.
          starts_step: see `look_up`.
          sent: the keys.
          is_there: whether their rows were exchanged ahead; None if they never are.
        """
        remote = [
            self.traffic.remote_keys(each, to_owners.local_keys)
            for each, to_owners in zip(keys, sent, strict=True)
        ]
        for each in remote:
            self.traffic.record_lookup(each, training)
            if is_there is not None and each is not None:
                self.traffic.record_prefetched(each * tf.cast(is_there, tf.int64))
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
        gathered = self._gather(sent, split(values, received), is_there)
        parts = zip(sent, remote, split(rows, received), gathered, strict=True)
        return [
            self._result(to_owners, remote, rows, are_distinct, values)
            for to_owners, remote, rows, values in parts
        ]

    def _gather(
        self,
        sent: Sequence[SentKeys],
        values: Sequence[tf.Tensor],
        is_there: tf.Tensor | None,
    ) -> list[tf.Tensor]:
        """Returns the owners' values of the sent keys, given those of the received ones."""

        def all_values() -> list[tf.Tensor]:
            pairs = zip(sent, values, strict=True)
            return [to_owners.gather_from_owners(each) for to_owners, each in pairs]

        ahead = self._ahead
        if is_there is None or ahead is None:
            return all_values()
        gathered = tf.cond(is_there, lambda: ahead.update(sent, values), all_values)
        return [tf.ensure_shape(each, [None, self._shard_lookup.width]) for each in gathered]

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
        """Returns the result of one replica; `values` are those of the keys sent."""
        values, penalties = split_penalties(values, self._shard_lookup.width)
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
        """Does nothing: workers in step exchange rows ahead by `exchange_ahead`."""

    def exchange_ahead(self, keys: BatchKeys) -> None:
        """Makes the steps that are traced from now on exchange the rows of the next batch.

        All workers must call it together.

        Args:
          keys: the keys of the next batches.

        Raises:
          ValueError: if a step was traced before.
        """
        if self._has_trained:
            raise ValueError(
                "prefetch_rows must be called before the first training step of a layer, because "
                "what a step does is fixed by then. Received: a layer that was trained without it. "
                "Call prefetch_rows before fit, or create the model again."
            )
        all_to_all = self._all_to_all
        self._ahead = RowsAhead(keys, all_to_all.collectives, all_to_all.wire, self._shard_lookup)

    def clear_prefetched(self) -> None:
        """Discards the rows that were exchanged ahead."""
        if self._ahead is not None:
            self._ahead.clear()

    def forget_copies(self) -> None:
        """Does nothing: each row is on one worker."""
