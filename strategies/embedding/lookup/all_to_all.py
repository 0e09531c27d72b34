"""Exchange of keys, values and gradients between the workers and the owners of the keys."""

from __future__ import annotations

import tensorflow as tf

from strategies.collectives import Collectives
from strategies.embedding.shard.hashing import shard_of
from strategies.reduction.row_wire import RowWire
from strategies.utils.devices import HOST


class AllToAll:
    """Sends keys to their owners; every worker takes part, even with no keys.

    Args:
      collectives: collectives among the workers.
      wire: form in which values are exchanged.
    """

    def __init__(self, collectives: Collectives, wire: RowWire):
        self.collectives = collectives
        self._wire = wire

    def send(self, keys: tf.Tensor) -> SentKeys:
        """Sends each key, a row of int64 [n, k], to the owner of the id in column 1."""
        if self.collectives.size == 1:
            return SentKeys(self.collectives, self._wire, keys, None, tf.shape(keys)[:1])
        owners = shard_of(keys[:, 1], self.collectives.size)
        order = tf.argsort(owners, stable=True)
        with tf.device(HOST):  # the GPU kernel of bincount does not support op determinism
            counts = tf.math.bincount(
                tf.cast(owners, tf.int32), minlength=self.collectives.size, dtype=tf.int32
            )
        return SentKeys(self.collectives, self._wire, tf.gather(keys, order), order, counts)


class SentKeys:
    """Keys that were sent to their owners, for exchanges of their values in either direction.

    Args:
      collectives: collectives among the workers.
      wire: form in which values are exchanged.
      keys: keys to send, ordered by owner.
      order: original positions of the keys; None if they were already ordered.
      counts: number of keys for each worker.

    Attributes:
      keys: keys that this worker received and owns.
    """

    def __init__(
        self,
        collectives: Collectives,
        wire: RowWire,
        keys: tf.Tensor,
        order: tf.Tensor | None,
        counts: tf.Tensor,
    ):
        self._collectives = collectives
        self._wire = wire
        self._order = order
        self._counts = counts
        self._sent = keys
        self.keys, self._received_counts = collectives.all_to_all(keys, counts)

    def local_keys(self) -> tf.Tensor:
        """Returns the sent keys that this worker owns itself, [m, k]."""
        start = tf.reduce_sum(self._counts[: self._collectives.rank])
        return self._sent[start : start + self._counts[self._collectives.rank]]

    def gather_from_owners(self, values: tf.Tensor) -> tf.Tensor:
        """Returns the owners' values of the sent keys, [n, width].

        Args:
          values: this worker's values of the received keys, [m, width].
        """
        values = self._exchange(values, self._received_counts)
        if self._order is None:
            return values
        return tf.gather(values, tf.math.invert_permutation(self._order))

    def scatter_to_owners(self, values: tf.Tensor) -> tf.Tensor:
        """Returns all workers' values of the received keys, [m, width].

        Args:
          values: this worker's values of the sent keys, [n, width].
        """
        if self._order is not None:
            values = tf.gather(values, self._order)
        return self._exchange(values, self._counts)

    def _exchange(self, values: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
        if self._collectives.size == 1:
            return values
        sent, _ = self._collectives.all_to_all(self._wire.encode(values), counts)
        return self._wire.decode(sent, values.shape[1])
