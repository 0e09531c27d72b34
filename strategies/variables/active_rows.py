"""The rows that an optimizer sees, and the gradient that they are shown for.

A gradient names its rows by their positions in the view, so it fits no view but its own. Where
another gradient is computed before it is applied, its view is gone. It must be recognized then, as
rows, clipped, deduplicated or made dense, and what all of these keep is positions and the number of
rows. So the positions of a gradient begin behind those at which gradients began that were never
applied, and none of these ended where it ends. Where each is applied before the next one is
computed, positions begin with 0.
"""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf

from strategies._tensorflow import ResourceVariable
from strategies.assertions import assert_in_step
from strategies.variables.growable_array import HOST

# How many gradients that were never applied are told apart.
_MAX_DROPPED = 1024


class ActiveRows:
    """The rows that an optimizer sees, of a table's variable and all its slot variables.

    Args:
      expected: expected number of rows in all; None if unknown.
    """

    def __init__(self, expected: int | None = None):
        self.expected = expected
        with tf.init_scope(), tf.device(HOST):
            self._rows = ResourceVariable(tf.zeros([0], tf.int64), trainable=False, shape=[None])
            # Number of rows, in use or not.
            self.length = ResourceVariable(tf.constant(0, tf.int64), trainable=False)
            # The first position of a row in view, and the end.
            self._range = ResourceVariable(tf.zeros([2], tf.int64), trainable=False)
            self._is_applied = ResourceVariable(tf.constant(True), trainable=False)
            # The ranges of gradients that were not applied before the next one was computed.
            self._dropped = ResourceVariable(
                tf.zeros([0, 2], tf.int64), trainable=False, shape=[None, 2]
            )
        # What was checked last, where, and the operations that did.
        self._checked: tuple[Any, Any, list[tf.Operation]] = (lambda: None, None, [])
        # Changes whenever rows are put in view.
        self.version = object()

    def show(self, rows: tf.Tensor) -> None:
        """Puts rows in view, at the positions 0, 1, 2, ..."""
        self._set(rows, tf.stack([tf.constant(0, tf.int64), tf.size(rows, tf.int64)]))

    def show_gradient(self, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Puts the rows of a gradient in view; returns their positions, and where these end."""
        with tf.device(HOST):
            size = tf.size(rows, tf.int64)
            is_first = self._is_applied.read_value() & tf.equal(
                tf.size(self._dropped.read_value()), 0
            )
            start = tf.cond(
                is_first, lambda: tf.constant(0, tf.int64), lambda: self._start_of_next(size)
            )
            end = start + size
            self._set(tf.pad(rows, [[start, 0]]), tf.stack([start, end]))
            self._is_applied.assign(False)
            return tf.range(start, end), end

    def _start_of_next(self, size: tf.Tensor) -> tf.Tensor:
        """Returns the first position of a gradient, behind those that were not applied."""
        before = self._range.read_value()
        is_dropped = ~self._is_applied.read_value() & (before[1] > before[0])
        dropped = self._dropped.read_value()
        dropped = dropped[: tf.where(tf.shape(dropped)[0] < _MAX_DROPPED, _MAX_DROPPED, 0)]
        dropped = tf.concat([dropped, before[tf.newaxis][: tf.cast(is_dropped, tf.int32)]], 0)
        self._dropped.assign(dropped)
        starts, ends = dropped[:, 0], dropped[:, 1]
        least = tf.reduce_max(tf.concat([starts + 1, [0]], 0))
        starts = tf.range(least, least + tf.size(ends, tf.int64) + 1)
        start = tf.raw_ops.ListDiff(x=starts, y=ends - size).out[0]
        # Without rows nothing is applied, and there may be none to stand for those before.
        return tf.where(size > 0, start, 0)

    def _set(self, rows: tf.Tensor, within: tf.Tensor) -> None:
        with tf.device(HOST):
            self._rows.assign(rows)
            self._range.assign(within)
        self.version = object()

    def rows(self, positions: tf.Tensor | None = None, gradient: Any = None) -> tf.Tensor:
        """Returns the numbers of the rows in view, all or those at some positions.

        All of them begin with numbers of rows that are not in view; see `in_view`.

        Args:
          positions: positions; None is all of them.
          gradient: the gradient that is applied, if it is known.

        Raises:
          tf.errors.InvalidArgumentError: if the rows in view are not those of the gradient.
        """
        with tf.device(HOST), tf.control_dependencies(self._checks(positions, gradient)):
            return (
                self._rows.read_value() if positions is None else self._rows.sparse_read(positions)
            )

    def in_view(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
        """Returns what tensors of one element for each of `rows` have for the rows in view."""
        with tf.device(HOST):
            start = tf.unstack(self._range.read_value())[0]
            if tf.executing_eagerly() and not start:
                return list(tensors)
            return [each[start:] for each in tensors]

    def mark_applied(self) -> None:
        """Notes that the gradient whose rows are in view was applied."""
        with tf.device(HOST):
            self._is_applied.assign(True)

    def _checks(self, positions: tf.Tensor | None, gradient: Any) -> list[tf.Operation]:
        """Returns what ends the step if the rows in view are not those of a gradient."""
        given = positions if gradient is None else gradient
        if given is None:
            return []
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        # An update reads and writes several variables for one gradient.
        checked, where, checks = self._checked
        if checked() is not given or where != (graph, self.version):
            checks = self._new_checks(given)
            self._checked = weakref.ref(given), (graph, self.version), checks
        return checks

    def _new_checks(self, given: Any) -> list[tf.Operation]:
        start, end = tf.unstack(self._range.read_value())
        count, positions = end, given
        if isinstance(given, tf.IndexedSlices):
            positions = given.indices
            count = end if given.dense_shape is None else given.dense_shape[0]
        elif given.dtype.is_floating:
            count, positions = tf.shape(given)[0], end
        are_behind = tf.reduce_all(tf.cast(positions, tf.int64) >= start)
        # In the graph of a server `==` would tell whether both are one tensor.
        is_right = tf.equal(tf.cast(count, tf.int64), end) & are_behind
        check = assert_in_step(
            is_right,
            [
                "A gradient of an embedding is applied before the next one is computed, or not at "
                "all. Received: one that was computed before the last one; it ends at position",
                count, "and the last one at", end, "Apply each gradient as soon as it is computed, "
                "or take one gradient of the sum of the losses.",
            ],
        )  # fmt: skip
        return [] if check is None else [check]
