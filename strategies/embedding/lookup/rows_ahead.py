"""Exchange of the rows of the next batch while a step computes.

[Note: rows ahead of time]
Workers in step exchange the ids of a batch, then its rows, and at the end of the step the gradients
of the rows. The first two can be done a step ahead. A step begins an exchange of the next batch's
ids and of the rows that they have now, and does not wait for it before it computes. The next step
finds the ids and rows there. The owners of the rows then do what they do in any lookup: they insert
ids, count them and evict. They compare the values with those that they sent ahead, and send those
that differ once more: what the step before has trained, and what is new. So the values of a step
are, to the bit, those without the exchange ahead, and one exchange remains, of fewer rows.

Reading the rows ahead changes nothing and has no effect on what gets a row. A row that is read
while a step writes it may be a mixture; it differs from the final one, and is sent again.

The exchange ahead has a stream of collectives of its own, because it runs beside the exchanges of
gradients: see [Note: whose turn it is] in collectives/base.py. A collective operation that blocks a
thread of TensorFlow would block the step as well, so workers that share memory, whose exchanges
take microseconds, exchange nothing ahead.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from strategies.collectives import Collectives
from strategies.compat.tensorflow import ResourceVariable
from strategies.embedding.lookup.all_to_all import AllToAll, Exchange, SentKeys
from strategies.embedding.lookup.batch_keys import BatchKeys
from strategies.embedding.lookup.router import join, split
from strategies.embedding.shard.shard_lookup import ShardLookup
from strategies.reduction.row_wire import RowWire
from strategies.utils.devices import HOST

_POSITION_WORDS = 2  # of 32 bits, in an int64


class RowsAhead:
    """The rows of the next batch, which all workers exchange together.

    Args:
      keys: the keys of the next batches.
      collectives: collectives of the steps.
      wire: form in which values are exchanged.
      shard_lookup: lookup in this worker's shard.
    """

    def __init__(
        self, keys: BatchKeys, collectives: Collectives, wire: RowWire, shard_lookup: ShardLookup
    ):
        self._keys = keys
        self._collectives = collectives
        self._wire = wire
        self._shard_lookup = shard_lookup
        self._ahead = AllToAll(collectives.new_stream(), wire)
        self._stored = [_Stored(collectives.size, shard_lookup.width) for _ in range(keys.replicas)]

    @property
    def replicas(self) -> int:
        """The number of replicas of this worker."""
        return self._keys.replicas

    def clear(self) -> None:
        """Discards the rows that were exchanged."""
        self._keys.clear()

    def take(self, keys: Sequence[tf.Tensor]) -> tuple[tf.Tensor, list[Exchange], list[tf.Tensor]]:
        """Returns what was exchanged of a step's keys, and the keys to exchange next.

        Returns:
          Whether the keys were exchanged, their exchange by replica, which is only valid then, and
          the keys of the next batch by replica, none if there is no such batch.
        """

        def take(*keys: np.ndarray) -> list[np.ndarray]:
            is_there, following = self._keys.take(keys)
            nothing = [np.zeros([0, 3], np.int64)] * len(keys)
            return [np.array(is_there), *(nothing if following is None else following)]

        is_there, *following = tf.numpy_function(
            take, list(keys), [tf.bool, *[tf.int64] * len(keys)]
        )
        exchanges = [stored.exchange.read() for stored in self._stored]
        return (
            tf.ensure_shape(is_there, []),
            exchanges,
            [tf.ensure_shape(each, [None, 3]) for each in following],
        )

    def update(self, sent: Sequence[SentKeys], values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the present values of the sent keys, [n, width], by replica.

        Args:
          sent: the keys that were exchanged ahead, by replica.
          values: this worker's present values of the keys that it received, by replica.
        """
        return [
            self._update(stored, each, present)
            for stored, each, present in zip(self._stored, sent, values, strict=True)
        ]

    def _update(self, stored: _Stored, sent: SentKeys, values: tf.Tensor) -> tf.Tensor:
        exchange, before = sent.exchange, stored.owned.read_value()
        changed = tf.where(tf.reduce_any(values != before, axis=1))[:, 0]
        requesters = _repeated(exchange.received_counts)
        requester = tf.gather(requesters, changed)
        position = changed - tf.gather(_starts(exchange.received_counts), requester)
        with tf.device(HOST):  # the GPU kernel of bincount does not support op determinism
            counts = tf.math.bincount(requester, minlength=self._collectives.size, dtype=tf.int32)
        packed = self._pack(position, tf.gather(values, changed))
        received, of_workers = self._collectives.all_to_all(packed, counts)
        position, new = self._unpack(received)
        position += tf.gather(_starts(exchange.counts), _repeated(of_workers.received))
        merged = tf.tensor_scatter_nd_update(
            stored.values.read_value(), position[:, tf.newaxis], new
        )
        return sent.in_order(merged)

    def _pack(self, positions: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        """Returns positions and values as words of 32 bits, so that they take one exchange."""
        words = tf.bitcast(self._wire.encode(values), tf.int32)
        return tf.concat([tf.bitcast(positions, tf.int32), words], 1)

    def _unpack(self, packed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        positions = tf.bitcast(packed[:, :_POSITION_WORDS], tf.int64)
        encoded = tf.bitcast(packed[:, _POSITION_WORDS:], self._wire.dtype)
        return positions, self._wire.decode(encoded, self._shard_lookup.width)

    def exchange(self, following: Sequence[tf.Tensor]) -> None:
        """Exchanges the keys and rows of the next batch; a step does not wait for it.

        Args:
          following: the keys of the next batch, by replica.
        """
        sent = [self._ahead.send(each) for each in following]
        received = [each.keys for each in sent]
        _, values = self._shard_lookup(join(received), False, False)
        for stored, each, owned in zip(self._stored, sent, split(values, received), strict=True):
            stored.owned.assign(owned, read_value=False)
            stored.values.assign(each.gather_sorted(owned), read_value=False)
            stored.exchange.assign(each.exchange)


class _Stored:
    """What one replica has exchanged ahead."""

    def __init__(self, size: int, width: int):
        self.exchange = _StoredExchange(size)
        # Of the keys that this worker received, and of those that it sent, ordered by their owners.
        self.owned, self.values = (_variable(tf.float32, [None, width]) for _ in range(2))


class _StoredExchange:
    """An `Exchange` in variables."""

    def __init__(self, size: int):
        self._variables = (
            _variable(tf.int64, [None, 3]),
            _variable(tf.int32, [None]),
            _variable(tf.int32, [size]),
            _variable(tf.int64, [None, 3]),
            _variable(tf.int32, [size]),
            _variable(tf.int32, []),
        )

    def read(self) -> Exchange:
        """Returns the exchange."""
        return Exchange(*(variable.read_value() for variable in self._variables))

    def assign(self, exchange: Exchange) -> None:
        """Replaces the exchange."""
        for variable, value in zip(self._variables, exchange, strict=True):
            variable.assign(tf.cast(value, variable.dtype), read_value=False)


def _variable(dtype: tf.DType, shape: Sequence[int | None]) -> tf.Variable:
    with tf.init_scope(), tf.device(HOST):
        zeros = tf.zeros([length or 0 for length in shape], dtype)
        return ResourceVariable(zeros, trainable=False, shape=shape)


def _starts(counts: tf.Tensor) -> tf.Tensor:
    """Returns where the part of each worker starts, int64 [size]."""
    return tf.cumsum(tf.cast(counts, tf.int64), exclusive=True)


def _repeated(counts: tf.Tensor) -> tf.Tensor:
    """Returns the worker of each element, int32."""
    return tf.repeat(tf.range(tf.size(counts)), counts)
