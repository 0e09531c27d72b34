"""The lookup of all tables of one width: one exchange of ids, one of rows, one of gradients."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from strategies._tensorflow import is_recorded
from strategies.embedding.exchange import Exchange, Trip
from strategies.embedding.sent import Sent
from strategies.embedding.store import RowStore
from strategies.embedding.table import Table
from strategies.reduction import rows as row_gradients
from strategies.row_variable import View


class Lookup:
    """Looks up in tables whose rows are in one store.

    A gradient is summed by its owner over all examples of all workers, as often as an id came.
    What a replica's gradient counts for, Keras says by dividing the loss by the number of
    replicas; here nothing is divided.

    Args:
      store: has the rows.
      tables: by the number that they have in the keys.
      exchange: between the workers.
      unseen: "initial" or "zeros", what an id has that has no row.
    """

    def __init__(self, store: RowStore, tables: Sequence[Table], exchange: Exchange, unseen: str):
        self._store = store
        self._tables = tables
        self._exchange = exchange
        self._unseen = unseen
        self.sent = Sent(len(tables), exchange.collectives.size > 1)
        self._recorded = threading.local()

    def __call__(self, ids: Sequence[tf.Tensor], training: bool) -> list[tf.Tensor]:
        """Returns the rows of ids, float32 [n, width] for each table.

        Args:
          ids: for each table, int64 [n].
          training: whether ids get rows, and their rows gradients.
        """
        keys, positions, sizes, uniques, before = [], [], [], [], tf.constant(0)
        for number, each in enumerate(ids):
            unique, places, counts = tf.unique_with_counts(each)
            counts = tf.cast(counts, tf.int64)
            keys.append(tf.stack([tf.fill(tf.shape(unique), tf.constant(number, tf.int64)),
                                  unique, counts], 1))  # fmt: skip
            positions.append(places + before)
            sizes.append(tf.size(each))
            uniques.append(tf.size(unique))
            before += uniques[-1]
        trip = self._exchange.sent(tf.concat(keys, 0))
        away = self.sent.away(trip, uniques)
        self.sent.looked_up(away, training)
        if training:
            self._store.step.assign_add(1, read_value=False)
        rows, values = self._here(trip.keys, training)
        if training:
            self._check_sizes()
        found = self._differentiable(trip, rows, values, away) if training else trip.back(values)
        each = tf.gather(found, tf.concat(positions, 0))
        parts = tf.split(each, tf.stack(sizes)) if len(sizes) > 1 else [each]
        return [tf.ensure_shape(part, [None, self._store.width]) for part in parts]

    def _here(self, keys: tf.Tensor, training: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the rows of keys that this worker owns, -1 for none, and their values."""
        numbers = tf.cast(keys[:, 0], tf.int32)
        count = len(self._tables)
        parts = tf.dynamic_partition(keys, numbers, count) if count > 1 else [keys]
        rows = []
        for table, part in zip(self._tables, parts, strict=True):
            ids, counts = part[:, 1], part[:, 2]
            rows.append(table.find_or_add(ids, counts) if training else table.find(ids))
        # All tables first, for adding may move the array.
        values = [
            self._valued(table, part[:, 1], row, training)
            for table, part, row in zip(self._tables, parts, rows, strict=True)
        ]
        if count == 1:
            return rows[0], values[0]
        places = tf.dynamic_partition(tf.range(tf.size(numbers)), numbers, count)
        return (
            tf.reshape(tf.dynamic_stitch(places, rows), [-1]),
            tf.reshape(tf.dynamic_stitch(places, values), [-1, self._store.width]),
        )

    def _check_sizes(self) -> None:
        """Ends the step, on all workers, if a table has more ids than it may have."""
        bounded = [
            table
            for table in self._tables
            if table.config.input_dim is not None and table.overflow is None
        ]
        if not bounded:
            return
        sizes = tf.stack([table.map.size() for table in bounded])
        sizes = self._exchange.collectives.all_reduce([sizes])[0]
        for table, size in zip(bounded, tf.unstack(sizes), strict=True):
            most = tf.constant(table.config.input_dim, tf.int64)
            tf.debugging.Assert(
                size <= most,
                [
                    f"The table {table.config.name!r} has at most input_dim ids. Received:", size,
                    "ids for input_dim =", most,
                    "Raise it, leave it out, or use admission or overflow='share'.",
                ],
            )  # fmt: skip

    def _valued(self, table: Table, ids: tf.Tensor, rows: tf.Tensor, training: bool) -> tf.Tensor:
        """Returns the values of rows, and for -1 what an id has that has no row."""
        array = self._store.variable.table
        if training and table.counter is None:
            return array.gather(rows)
        there, absent = tf.where(rows >= 0)[:, 0], tf.where(rows < 0)[:, 0]
        if self._unseen == "initial":
            others = table.initial(tf.gather(ids, absent))
        else:
            others = tf.zeros([tf.size(absent), self._store.width])
        places = [tf.cast(there, tf.int32), tf.cast(absent, tf.int32)]
        values = tf.dynamic_stitch(places, [array.gather(tf.gather(rows, there)), others])
        return tf.reshape(values, [-1, self._store.width])

    def _differentiable(
        self, trip: Trip, rows: tf.Tensor, values: tf.Tensor, away: tf.Tensor | None
    ) -> tf.Tensor:
        """Returns the rows where they were asked for; their gradient goes back to the owners."""
        width = self._store.width

        @tf.custom_gradient
        def looked_up(token: tf.Tensor) -> tuple:
            def gradient(upstream: tf.Tensor) -> tf.IndexedSlices:
                arrived = trip.forth(tf.convert_to_tensor(upstream))
                self.sent.trained(away)
                there = tf.where(rows >= 0)[:, 0]
                # As many rows as there is no memory for: nothing may make this dense.
                return tf.IndexedSlices(
                    tf.gather(arrived, there),
                    tf.gather(rows, there),
                    tf.constant([2**60, width], tf.int64),
                )

            del token
            return trip.back(values), gradient

        return looked_up(self._token())

    def _token(self) -> tf.Tensor:
        """Returns what lookups of one backward pass have in common, so that it sees them all."""
        token = getattr(self._recorded, "token", None)
        if token is None or not is_recorded([token]):
            trainer = self._store.trainer
            before = self._store.variable.token() if trainer is None else trainer.token()
            token = self._gate(before)
            self._recorded.token = token
        return token

    def _gate(self, token: tf.Tensor) -> tf.Tensor:
        trainer = self._store.trainer

        @tf.custom_gradient
        def gate(token: tf.Tensor) -> tuple:
            def gradient(upstream: tf.IndexedSlices) -> Any:
                if not isinstance(upstream, tf.IndexedSlices):
                    raise ValueError(
                        "An embedding's lookup is not inside tf.cond or a loop of TensorFlow's "
                        "that the gradient goes through. Received: a dense gradient. Call the "
                        "layer outside of it."
                    )
                summed = row_gradients.unique(upstream)
                rows = shown(self._store.view, summed.values, summed.indices)
                return rows if trainer is None else trainer.trained(rows)

            return tf.identity(token), gradient

        return gate(token)


def shown(view: View, values: tf.Tensor, rows: tf.Tensor) -> tf.IndexedSlices:
    """Puts rows in view and returns their gradient in terms of it."""
    view.show(rows)
    positions = tf.range(tf.size(rows))
    row_gradients.keep_here(positions, rows, lambda values, rows: shown(view, values, rows))
    return tf.IndexedSlices(values, positions, tf.shape(values))
