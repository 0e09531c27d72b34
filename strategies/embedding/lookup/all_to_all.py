"""Exchange of keys, values and gradients between the workers and the owners of the keys."""

from __future__ import annotations

import tensorflow as tf

from strategies.collectives import Collectives
from strategies.embedding.shard.hashing import shard_of
from strategies.variables.growable_array import HOST


class AllToAll:
    """Sends keys to their owners; every worker takes part with any number of them, 0 as well.

    Args:
      collectives: the workers.
    """

    def __init__(self, collectives: Collectives):
        self.collectives = collectives

    def send(self, keys: tf.Tensor) -> SentKeys:
        """Sends keys, int64 [n, k], each to the owner of the id in column 1."""
        if self.collectives.size == 1:
            return SentKeys(self.collectives, keys, None, tf.shape(keys)[:1])
        owners = self.owner_of(keys[:, 1])
        order = tf.argsort(owners, stable=True)
        with tf.device(HOST):  # its kernel for GPUs refuses `enable_op_determinism`
            counts = tf.math.bincount(
                tf.cast(owners, tf.int32), minlength=self.collectives.size, dtype=tf.int32
            )
        return SentKeys(self.collectives, tf.gather(keys, order), order, counts)

    def owner_of(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the rank of the worker that has an id's row, int64 [n]."""
        return shard_of(ids, self.collectives.size)


class SentKeys:
    """Keys that were sent to their owners, to exchange values of them in either direction.

    Args:
      collectives: the workers.
      keys: keys to be sent, in the order of their owners.
      order: the positions that they had, None if they were in that order.
      counts: number of keys that each worker owns.

    Attributes:
      keys: keys that this worker received, which it owns.
    """

    def __init__(
        self,
        collectives: Collectives,
        keys: tf.Tensor,
        order: tf.Tensor | None,
        counts: tf.Tensor,
    ):
        self._collectives = collectives
        self._order = order
        self._counts = counts
        self._sent = keys
        self.keys, self._received_counts = collectives.all_to_all(keys, counts)

    def local_keys(self) -> tf.Tensor:
        """Returns those of the sent keys that this worker owns itself, [m, k]."""
        start = tf.reduce_sum(self._counts[: self._collectives.rank])
        return self._sent[start : start + self._counts[self._collectives.rank]]

    def gather_from_owners(self, values: tf.Tensor) -> tf.Tensor:
        """Returns the owners' values for the sent keys, [n, width].

        Args:
          values: this owner's values for the received keys, [m, width].
        """
        values, _ = self._collectives.all_to_all(values, self._received_counts)
        if self._order is None:
            return values
        return tf.gather(values, tf.math.invert_permutation(self._order))

    def scatter_to_owners(self, values: tf.Tensor) -> tf.Tensor:
        """Returns all workers' values for the received keys, [m, width].

        Args:
          values: this worker's values for the sent keys, [n, width].
        """
        if self._order is not None:
            values = tf.gather(values, self._order)
        return self._collectives.all_to_all(values, self._counts)[0]
