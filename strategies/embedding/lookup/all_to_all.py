"""How ids travel to the workers that have their rows, and rows and gradients back and forth."""

from __future__ import annotations

import tensorflow as tf

from strategies.collectives import Collectives
from strategies.embedding.shard.hashing import shard_of


class AllToAll:
    """Sends keys to their owners; every worker takes part with any number of them, 0 as well.

    Args:
      collectives: the workers.
    """

    def __init__(self, collectives: Collectives):
        self.collectives = collectives

    def sent(self, keys: tf.Tensor) -> Trip:
        """Sends keys, int64 [n, k], each to the owner of the id in column 1."""
        if self.collectives.size == 1:
            return Trip(self.collectives, keys, None, tf.shape(keys)[:1])
        owners = self.owner_of(keys[:, 1])
        order = tf.argsort(owners, stable=True)
        counts = tf.math.bincount(
            tf.cast(owners, tf.int32), minlength=self.collectives.size, dtype=tf.int32
        )
        return Trip(self.collectives, tf.gather(keys, order), order, counts)

    def owner_of(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the rank of the worker that has an id's row, int64 [n]."""
        return shard_of(ids, self.collectives.size)


class Trip:
    """Keys that are with their owners, and the way between the two.

    Args:
      collectives: the workers.
      keys: in the order of their owners.
      order: the positions that they had, None if they were in that order.
      counts: how many each worker owns.
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
        self.keys, self._received = collectives.all_to_all(keys, counts)

    def stays(self) -> tf.Tensor:
        """Returns those of the keys that were sent which this worker owns itself, [m, k]."""
        start = tf.reduce_sum(self._counts[: self._collectives.rank])
        return self._sent[start : start + self._counts[self._collectives.rank]]

    def back(self, values: tf.Tensor) -> tf.Tensor:
        """Returns what the owners have for the keys that were sent, [n, width].

        Args:
          values: what this one has for the keys that it received, [m, width].
        """
        values, _ = self._collectives.all_to_all(values, self._received)
        if self._order is None:
            return values
        return tf.gather(values, tf.math.invert_permutation(self._order))

    def forth(self, values: tf.Tensor) -> tf.Tensor:
        """Returns what belongs to the keys that were received, [m, width].

        Args:
          values: what belongs to the keys that were sent, [n, width].
        """
        if self._order is not None:
            values = tf.gather(values, self._order)
        return self._collectives.all_to_all(values, self._counts)[0]
