"""Eviction of rows from one shard of a table: by a rule, and to make room in a full table.

`config.Eviction` defines the rule and the order of the rows of a full table.
"""

from __future__ import annotations

import tensorflow as tf

from strategies.embedding.config import Eviction
from strategies.embedding.shard.id_map import IdMap
from strategies.embedding.shard.removal_log import RemovalLog
from strategies.embedding.shard.row_store import RowStore
from strategies.embedding.shard.step_times import StepTimes


class Evictor:
    """Selects and removes rows of one shard of a table.

    Rows whose gradient has been computed but not applied are not removed in a step, because the
    optimizer is about to write to them.

    Args:
      rule: the rule; None selects no rows, and orders those of a full table by their last step.
      ids: map of the ids with a row in this shard.
      store: store of the rows.
      removals: log of the ids whose rows are removed.

    Attributes:
      times: times of the steps if the rule has `seconds`; otherwise None.
    """

    def __init__(self, rule: Eviction | None, ids: IdMap, store: RowStore, removals: RemovalLog):
        self._rule = rule
        self._ids = ids
        self._store = store
        self._removals = removals
        seconds = None if rule is None else rule.seconds
        self.times = None if seconds is None else StepTimes(seconds)

    def begin_step(self, now: tf.Tensor | None) -> tf.Tensor | None:
        """Removes rows between two steps, in those steps that the rule's `every` names.

        Args:
          now: the time that the workers agreed on, as that of `StepTimes`; None reads the clock.

        Returns:
          The number of removed rows, int64; None if rows are only removed by `remove_expired`.
        """
        now = self._record_time(now, 1)
        if self._rule is None or self._rule.every is None:
            return None
        step = self._store.step.read_value()
        is_due = (step > 0) & tf.equal(step % self._rule.every, 0)
        return tf.cond(
            is_due,
            lambda: self._remove_expired(now, in_step=True),
            lambda: tf.constant(0, tf.int64),
        )

    def remove_expired(self, now: tf.Tensor | None) -> tf.Tensor:
        """Removes the rows that the rule selects; returns their number, int64.

        Args:
          now: see `begin_step`.
        """
        rule = self._rule
        if rule is None or all(each is None for each in (rule.age, rule.count, rule.seconds)):
            return tf.constant(0, tf.int64)
        return self._remove_expired(self._record_time(now, 0), in_step=False)

    def _record_time(self, now: tf.Tensor | None, begins: int) -> tf.Tensor | None:
        """Records that so many steps begin now; returns the time, or None if it has no effect."""
        if self.times is None:
            return None
        now = self.times.now() if now is None else now
        self.times.record(now, self._store.step.read_value() + begins)
        return now

    def _remove_expired(self, now: tf.Tensor | None, in_step: bool) -> tf.Tensor:
        ids, rows = self._ids.all()
        mask = self._is_expired(rows, now)
        if in_step:
            mask &= ~self._are_among(rows, self._store.view.unapplied_rows())
        return self._remove(tf.boolean_mask(ids, mask), tf.boolean_mask(rows, mask))

    def _is_expired(self, rows: tf.Tensor, now: tf.Tensor | None) -> tf.Tensor:
        """Returns a mask of the rows that the rule selects."""
        rule, store = self._rule, self._store
        mask = tf.zeros_like(rows, tf.bool)
        if rule is None:
            return mask
        last_step = store.metadata.last_step.gather(rows)
        if rule.age is not None:
            mask |= store.step.read_value() - last_step >= rule.age
        if self.times is not None and now is not None:
            mask |= last_step <= self.times.last_expired(now)
        if rule.count is not None:
            mask |= store.metadata.frequency.gather(rows) < rule.count
        return mask

    def make_room(self, least: tf.Tensor, batch: tf.Tensor, used: tf.Tensor) -> tf.Tensor:
        """Removes the rows that the rule's policy ranks first.

        Rows that this step has used are not removed. If there are too few others, none is.

        Args:
          least: number of rows to remove at least, int64, more than 0.
          batch: number of rows to remove if so many are not in use.
          used: rows that the running lookup has found.

        Returns:
          The number of removed rows, and by how many they are fewer than `least`, int64.
        """
        ids, rows = self._ids.all()
        metadata = self._store.metadata
        is_free = metadata.last_step.gather(rows) < self._store.step.read_value()
        in_use = tf.concat([used, self._store.view.unapplied_rows()], 0)
        is_free &= ~self._are_among(rows, in_use)
        ids, rows = tf.boolean_mask(ids, is_free), tf.boolean_mask(rows, is_free)
        free = tf.size(rows, tf.int64)
        lacking = tf.maximum(least - free, 0)
        count = tf.where(
            lacking > 0, tf.zeros_like(free), tf.minimum(tf.maximum(least, batch), free)
        )
        by_use = self._rule is not None and self._rule.policy == "lfu"
        ranks = metadata.by_frequency(rows) if by_use else metadata.by_last_step(rows)
        first = _first(ranks, ids, tf.cast(count, tf.int32))
        return tf.stack([self._remove(tf.gather(ids, first), tf.gather(rows, first)), lacking])

    def _are_among(self, rows: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
        """Returns a mask of the rows that are in `others`."""
        mask = tf.zeros([self._store.view.length.read_value()], tf.bool)
        marked = tf.ones_like(others, tf.bool)
        return tf.gather(tf.tensor_scatter_nd_update(mask, others[:, tf.newaxis], marked), rows)

    def _remove(self, ids: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        self._ids.remove(ids)
        self._removals.record(ids)
        self._store.free(rows)
        return tf.size(rows, tf.int64)


def _first(ranks: tf.Tensor, ids: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Returns the positions of the `count` lowest ranks, in their order and then that of the ids.

    >>> _first(tf.constant([5, 4, 5, 9, 5]), tf.constant([7, 8, -1, 0, 3]), 3).numpy().tolist()
    [1, 2, 4]
    """
    # Only those are sorted that may be among them.
    limit = tf.reduce_max(tf.concat([-tf.math.top_k(-ranks, count).values, [-1]], 0))
    near = tf.where(ranks <= limit)[:, 0]
    near = tf.gather(near, tf.argsort(tf.gather(ids, near), stable=True))
    near = tf.gather(near, tf.argsort(tf.gather(ranks, near), stable=True))
    return near[:count]
