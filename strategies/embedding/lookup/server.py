"""Lookup of rows that are sharded over parameter servers."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from strategies.collectives import Collectives
from strategies.embedding.lookup.batch_keys import BatchKeys
from strategies.embedding.lookup.prefetch_queue import PrefetchQueue
from strategies.embedding.lookup.router import (
    LookupResult,
    check_limits,
    join,
    split,
    split_penalties,
)
from strategies.embedding.lookup.traffic import TrafficCounter
from strategies.embedding.shard.hashing import shard_of
from strategies.embedding.shard.server_shard import RemoteTableShard
from strategies.embedding.shard.table_shard import Group
from strategies.profiling.spans import BACKGROUND, SpanStream
from strategies.ps.connection import ServerConnection
from strategies.ps.extended import ParameterServerExtended
from strategies.reduction.row_wire import RowWire
from strategies.reduction.sparse import all_reduce


class ServerRouter:
    """Routes keys to the servers that store the rows.

    If workers run in step, the ids of all workers are inserted in one call, so that admission does
    not depend on which worker is first.

    Args:
      extended: `extended` of the strategy.
      shards: shard of each server.
      group: group of the tables.
    """

    def __init__(
        self, extended: ParameterServerExtended, shards: Sequence[RemoteTableShard], group: Group
    ):
        self._extended = extended
        self._shards = shards
        self._group = group
        self._width = group.width
        self._wire = RowWire(group.width, group.exchange_dtype)
        self._limited = shards[0].lookups[group].limited
        self.traffic = TrafficCounter(shards[0].lookups[group].count, True)
        self._are_in_step = extended.in_step and extended.workers.size > 1
        # Otherwise, several workers or replicas may look up the same id.
        self._are_distinct = not self._are_in_step and len(extended.worker_devices) == 1
        self._queues: weakref.WeakSet[PrefetchQueue] = weakref.WeakSet()
        self._spans = SpanStream(BACKGROUND)

    @property
    def _workers(self) -> Collectives:
        return self._extended.workers

    def look_up(
        self, keys: Sequence[tf.Tensor], training: bool, starts_step: bool
    ) -> list[LookupResult]:
        """Looks up the rows of keys."""
        own = join(keys)
        remote = [self._record_lookup(each, training) for each in keys]
        inserts_alone = training and not self._are_in_step

        def find(keys: np.ndarray, owners: np.ndarray) -> list[np.ndarray]:
            result = self._pop_prefetched(keys, starts_step) if inserts_alone else None
            if result is not None:
                return [*result, np.ones([], np.int64)]
            return [*self._find(keys, owners, training, starts_step), np.zeros([], np.int64)]

        dtypes = [tf.int64, tf.float32, tf.int64, tf.int64]
        arguments = [own, shard_of(own[:, 1], len(self._shards))]
        rows, values, excess, is_prefetched = self._extended.call_in_order(
            "look rows up", find, arguments, dtypes
        )
        if inserts_alone:
            for each in remote:
                self.traffic.record_prefetched(each * tf.ensure_shape(is_prefetched, []))
        if training and self._limited:
            check_limits(self._limited, tf.ensure_shape(excess, [len(self._limited)]))
        values = split(tf.ensure_shape(values, [None, self._columns(training)]), keys)
        parts = zip(values, split(tf.ensure_shape(rows, [None]), keys), remote, strict=True)
        results = []
        for values, rows, remote in parts:
            values, penalties = split_penalties(values, self._width)
            results.append(LookupResult(values, rows, True, self._scatter(remote), penalties))
        return results

    def _columns(self, training: bool) -> int:
        """Returns the number of columns of the values that `ShardLookup` returns."""
        return self._width + (training and self._shards[0].lookups[self._group].has_penalty)

    def _record_lookup(self, keys: tf.Tensor, training: bool) -> tf.Tensor:
        remote = self.traffic.remote_keys(keys, lambda: keys[:0])
        self.traffic.record_lookup(remote, training)
        return remote

    def _scatter(self, remote: tf.Tensor) -> Callable[[tf.Tensor], tf.Tensor]:
        def scatter_gradient(gradient: tf.Tensor) -> tf.Tensor:
            self.traffic.record_gradients(remote)
            return gradient

        return scatter_gradient

    def reduce(self, gradient: tf.IndexedSlices) -> tf.IndexedSlices:
        """Sums the gradients of all workers if they run in step."""
        return all_reduce(gradient, self._workers, self._wire) if self._are_in_step else gradient

    def prefetch(self, queue: PrefetchQueue, keys: np.ndarray, starts_step: bool) -> None:
        """Submits the lookup of a future step to a queue."""
        self._queues.add(queue)
        owners = shard_of(tf.constant(keys[:, 1]), len(self._shards)).numpy()

        def find() -> list[np.ndarray]:
            return self._spans.measure_call(
                "look rows up", lambda: self._find(keys, owners, True, starts_step)
            )

        queue.submit(keys, starts_step, find)

    def exchange_ahead(self, keys: BatchKeys) -> None:
        """Does nothing: workers in step look all ids up in one call."""

    def clear_prefetched(self) -> None:
        """Discards the results of all lookups submitted so far."""
        for queue in list(self._queues):
            queue.clear()

    def forget_copies(self) -> None:
        """Does nothing: the rows are on the servers only."""

    def _pop_prefetched(self, keys: np.ndarray, starts_step: bool) -> list[np.ndarray] | None:
        """Returns the prefetched result for keys; None if there is none."""
        queues = list(self._queues)
        for queue in queues:
            if (result := queue.pop(keys, starts_step)) is not None:
                return result
        for queue in queues:
            queue.check()
        return None

    def _find(
        self, keys: np.ndarray, owners: np.ndarray, inserts: bool, counts_step: bool
    ) -> list[np.ndarray]:
        """Returns the rows and values of keys from all servers, and the excess of the tables."""

        wire = self._wire

        def find_at(server: ServerConnection) -> list[np.ndarray]:
            shard = self._shards[server.number]
            lookup = shard.lookups[self._group]
            own = keys[owners == shard.index]

            def look_up(keys: tf.Tensor) -> list[tf.Tensor]:
                rows, values = lookup(keys, inserts, counts_step, self._are_distinct)
                return [rows, wire.encode(values)]

            # See [Note: admission per step] in router.py.
            if inserts and self._are_in_step:
                return shard.call_together(
                    f"find {self._group.label}",
                    lambda keys: (look_up(keys), [lookup.excess()]),
                    own,
                    [tf.int64, wire.dtype, tf.int64],
                    state=lookup.slots,
                )
            # A repeated lookup finds the rows that the first one created; it counts ids twice.
            return shard.call(
                lambda keys: [*look_up(keys), lookup.excess()],
                own,
                state=lookup.slots,
                idempotent=True,
            )

        num_shards = len(self._shards)
        rows = np.empty([len(keys)], np.int64)
        values = np.empty([len(keys), self._columns(inserts)], np.float32)
        excess = np.zeros([len(self._limited)], np.int64)
        with self._track_wait(inserts):
            results = self._extended.servers.each(find_at)
        # A reference to a row on its server becomes a number that is unique over all servers, from
        # which `ps/embedding_rows.py` recovers the server and the reference when it sends the
        # gradient.
        for index, result in enumerate(results):
            own = owners == index
            rows[own] = np.where(result[0] < 0, -1, result[0] * num_shards + index)
            values[own] = wire.decode_array(result[1], values.shape[1])
            excess += result[2]
        return [rows, values, excess]

    def _track_wait(self, inserts: bool) -> contextlib.AbstractContextManager[None]:
        """Records that this worker may wait for others in the block, if it may."""
        if not (inserts and self._are_in_step):
            return contextlib.nullcontext()
        return self._extended.servers.operations.track_step("lookup on the parameter servers")
