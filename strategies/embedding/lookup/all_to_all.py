"""Exchange of keys, values and gradients between the workers and the owners of the keys."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from strategies.collectives import Collectives, RowCounts
from strategies.embedding.shard.hashing import shard_of
from strategies.reduction.row_wire import RowWire
from strategies.utils.devices import HOST


class Exchange(NamedTuple):
    """Keys that were sent to their owners, and those that were received.

    Attributes:
      sent: the sent keys, ordered by owner.
      order: original positions of the sent keys; None if they were already ordered.
      counts: number of sent keys for each worker.
      received: the keys that this worker received and owns, ordered by sender.
      received_counts: number of received keys from each worker.
      most: see `RowCounts`.
    """

    sent: tf.Tensor
    order: tf.Tensor | None
    counts: tf.Tensor
    received: tf.Tensor
    received_counts: tf.Tensor
    most: tf.Tensor


class AllToAll:
    """Sends keys to their owners; every worker takes part, even with no keys.

    Args:
      collectives: collectives among the workers.
      wire: form in which values are exchanged.

    Attributes:
      collectives: see above.
      wire: see above.
    """

    def __init__(self, collectives: Collectives, wire: RowWire):
        self.collectives = collectives
        self.wire = wire

    def send(self, keys: tf.Tensor) -> SentKeys:
        """Sends each key, a row of int64 [n, k], to the owner of the id in column 1."""
        if self.collectives.size == 1:
            count = tf.shape(keys)[:1]
            return self.sent(Exchange(keys, None, count, keys, count, tf.constant(0)))
        owners = shard_of(keys[:, 1], self.collectives.size)
        order = tf.argsort(owners, stable=True)
        with tf.device(HOST):  # the GPU kernel of bincount does not support op determinism
            counts = tf.math.bincount(
                tf.cast(owners, tf.int32), minlength=self.collectives.size, dtype=tf.int32
            )
        keys = tf.gather(keys, order)
        received, of_workers = self.collectives.all_to_all(keys, counts)
        return self.sent(Exchange(keys, order, counts, received, *of_workers))

    def sent(self, exchange: Exchange) -> SentKeys:
        """Returns keys that have been exchanged."""
        return SentKeys(self.collectives, self.wire, exchange)


class SentKeys:
    """Keys that were sent to their owners, for exchanges of their values in either direction.

    Args:
      collectives: collectives among the workers.
      wire: form in which values are exchanged.
      exchange: the keys.

    Attributes:
      exchange: the keys.
    """

    def __init__(self, collectives: Collectives, wire: RowWire, exchange: Exchange):
        self._collectives = collectives
        self._wire = wire
        self.exchange = exchange

    @property
    def keys(self) -> tf.Tensor:
        """The keys that this worker received and owns."""
        return self.exchange.received

    def local_keys(self) -> tf.Tensor:
        """Returns the sent keys that this worker owns itself, [m, k]."""
        counts, rank = self.exchange.counts, self._collectives.rank
        start = tf.reduce_sum(counts[:rank])
        return self.exchange.sent[start : start + counts[rank]]

    def gather_from_owners(self, values: tf.Tensor) -> tf.Tensor:
        """Returns the owners' values of the sent keys, [n, width].

        Args:
          values: this worker's values of the received keys, [m, width].
        """
        return self.in_order(self.gather_sorted(values))

    def gather_sorted(self, values: tf.Tensor) -> tf.Tensor:
        """Returns the same as `gather_from_owners`, ordered by owner."""
        return self._exchange(values, self.exchange.received_counts, self.exchange.counts)

    def in_order(self, values: tf.Tensor) -> tf.Tensor:
        """Returns values that are ordered by owner in the order of the keys that were sent."""
        if self.exchange.order is None:
            return values
        return tf.gather(values, tf.math.invert_permutation(self.exchange.order))

    def scatter_to_owners(self, values: tf.Tensor) -> tf.Tensor:
        """Returns all workers' values of the received keys, [m, width].

        Args:
          values: this worker's values of the sent keys, [n, width].
        """
        if self.exchange.order is not None:
            values = tf.gather(values, self.exchange.order)
        return self._exchange(values, self.exchange.counts, self.exchange.received_counts)

    def _exchange(self, values: tf.Tensor, counts: tf.Tensor, received: tf.Tensor) -> tf.Tensor:
        if self._collectives.size == 1:
            return values
        known = RowCounts(received, self.exchange.most)
        sent, _ = self._collectives.all_to_all(self._wire.encode(values), counts, known)
        return self._wire.decode(sent, values.shape[1])
