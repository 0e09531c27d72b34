"""The rows that an optimizer sees (the view), and the gradient that they belong to.

[Note: positions in the view]
See [Note: the rows in view] in row_variable.py for what a view is. A gradient indexes its rows by
their positions in the view, so it is only valid for its own view. If another gradient is computed
before it is applied, its view is lost, and applying it must raise an error. So a stale gradient
must be recognizable even after it was clipped, deduplicated or converted to a dense tensor; all of
these preserve the positions and the number of rows. Therefore, the positions of a gradient start
after the start of every unapplied gradient, and end where none of these ended. If each gradient is
applied before the next one is computed, positions start at 0.

[Note: references to rows]
If rows are removed during training, a gradient may belong to a row that has been removed since it
was looked up, by another step or, on a server, by another worker. The row's place may already be
that of another id. So a lookup in training returns references: the row's number and, in the bits
above it, how often rows of the table had been freed by then. A gradient whose row has been freed
since is dropped before rows are put in view. Most often, no row at all has been freed since, which
one comparison tells without a look at each row. In tables whose rows are only removed between
steps, a reference is the row's number.

The rows of a server that is restarted are those of an earlier moment: a place may soon be that of
another id than before. So tables on servers that may be restarted have such references as well. A
restarted server adds a number to its count that is larger than the greatest age of a valid
reference, so that no reference from before is valid.
"""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf

from strategies.compat.tensorflow import ResourceVariable
from strategies.reduction.sparse import sum_by_index
from strategies.utils.assertions import assert_in_step
from strategies.utils.devices import HOST
from strategies.variables.growable_array import GrowableArray
from strategies.variables.restart_marks import mark_advance

# Maximum number of unapplied gradients that are recognized as stale.
_MAX_DROPPED = 1024
# Bits of a row's number in a reference, and of the count above them. What is left of an int64 is
# for the number of the server.
_ROW_BITS = 31
_COUNT_BITS = 20
# How often rows may be freed between a lookup and its gradient; older references are not valid.
_MAX_AGE = 2**17
# Added to the count by a restarted server. Rows are freed far less often between the moment that is
# restored and the restart. The first seven multiples of this number, modulo 2**20, are greater than
# the maximum age, so that this also holds for references from before several restarts.
_AT_RESTART = 400_557


class RowView:
    """The rows that an optimizer sees of a table's variable and all its slot variables.

    Args:
      expected: expected total number of rows; None if unknown.
      counts_frees: whether rows are freed during training, or the server of the rows may be
        restarted; see [Note: references to rows].

    Attributes:
      expected: expected total number of rows; None if unknown.
      length: number of rows, including freed ones.
      step: number of training steps so far.
      version: object that changes whenever rows are put in view.
    """

    def __init__(self, expected: int | None = None, counts_frees: bool = False):
        self.expected = expected
        # What `_frees` was after the row in each place was freed; 0 if it never was.
        self._freed_at = GrowableArray((), tf.int64, 0, expected) if counts_frees else None
        with tf.init_scope(), tf.device(HOST):
            self._rows = ResourceVariable(tf.zeros([0], tf.int64), trainable=False, shape=[None])
            self.length, self.step = (
                ResourceVariable(tf.constant(0, tf.int64), trainable=False) for _ in range(2)
            )
            # Start and end of the positions of the rows in view.
            self._range = ResourceVariable(tf.zeros([2], tf.int64), trainable=False)
            self._is_applied = ResourceVariable(tf.constant(True), trainable=False)
            # Ranges of gradients that were not applied before the next one was computed.
            self._dropped = ResourceVariable(
                tf.zeros([0, 2], tf.int64), trainable=False, shape=[None, 2]
            )
            if counts_frees:
                # How often rows have been freed, and what is added to this in references.
                self._frees, self._first_count = (
                    ResourceVariable(tf.constant(0, tf.int64), trainable=False) for _ in range(2)
                )
                mark_advance(self._first_count, _AT_RESTART)
        # The gradient that was checked last, its graph and view, and the operations of the check.
        self._checked: tuple[Any, Any, list[tf.Operation]] = (lambda: None, None, [])
        self.version = object()

    def grow(self, length: tf.Tensor) -> None:
        """Sets the number of rows, including freed ones."""
        self.length.assign(length)
        if self._freed_at is not None:
            self._freed_at.resize(length)

    def row_bytes(self) -> int:
        """Returns the size of what is stored for the references to a row."""
        return 0 if self._freed_at is None else self._freed_at.dtype.size

    def mark_freed(self, rows: tf.Tensor) -> None:
        """Invalidates the references to rows."""
        if self._freed_at is not None:
            with tf.device(HOST):
                frees = self._frees.assign_add(tf.cast(tf.size(rows) > 0, tf.int64))
                self._freed_at.update(rows, tf.fill(tf.shape(rows), frees))

    def references(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns references to rows; -1 stays -1."""
        if self._freed_at is None:
            return rows
        count = tf.bitwise.bitwise_and(self._count_after(rows), 2**_COUNT_BITS - 1)
        return tf.where(rows >= 0, rows + tf.bitwise.left_shift(count, _ROW_BITS), -1)

    def _count_after(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the count of a reference, before it is cut to its bits, once a tensor is known.

        In a graph of several steps, Python functions free rows between the steps. TensorFlow does
        not know this, and without the tensor might read the count of another step.
        """
        with tf.device(HOST), tf.control_dependencies([tensor]):
            return self._frees.read_value() + self._first_count.read_value()

    def incarnation(self) -> tf.Tensor:
        """Returns a number that changes when the server of the rows is restarted, int64."""
        if self._freed_at is None:
            return tf.constant(0, tf.int64)
        return self._first_count.read_value()

    def drop_freed(
        self, references: tf.Tensor, *values: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns the references whose rows have not been freed since, and their values.

        Each row has one reference in the result, and the sum of the values of all its references:
        lookups between which other rows were freed return different references to a row.

        Args:
          references: distinct references.
          *values: tensors with one value for each of them.
        """
        if self._freed_at is None:
            return references, list(values)
        counts = tf.bitwise.right_shift(references, _ROW_BITS)
        ages = tf.bitwise.bitwise_and(self._count_after(references) - counts, 2**_COUNT_BITS - 1)

        def drop() -> list[tf.Tensor]:
            rows = self.rows_of(references)
            positions = self._find_current(rows, ages)
            each = [tf.gather(value, positions) for value in values]
            rows, _, sums = sum_by_index(tf.gather(rows, positions), *each)
            return [self.references(rows), *sums]

        are_current = tf.reduce_all((references >= 0) & tf.equal(ages, 0))
        kept, *each = tf.cond(are_current, lambda: [references, *values], drop)
        return kept, each

    def _find_current(self, rows: tf.Tensor, ages: tf.Tensor) -> tf.Tensor:
        """Returns the positions of the references that are valid.

        Args:
          rows: numbers of their rows.
          ages: how often rows have been freed since they were made.
        """
        with tf.device(HOST), tf.control_dependencies([ages]):
            length, frees = self.length.read_value(), self._frees.read_value()
        # A restarted server has fewer rows than it had before.
        possible = tf.where((rows < length) & (ages < _MAX_AGE))[:, 0]
        freed_at = self._freed_at.gather(tf.gather(rows, possible))  # type: ignore[union-attr]
        made_at = frees - tf.gather(ages, possible)
        return tf.boolean_mask(possible, freed_at <= made_at)

    def rows_of(self, references: tf.Tensor) -> tf.Tensor:
        """Returns the numbers of rows from references to them."""
        if self._freed_at is None:
            return references
        return tf.bitwise.bitwise_and(references, 2**_ROW_BITS - 1)

    def unapplied_rows(self) -> tf.Tensor:
        """Returns the rows in view if their gradient has not been applied yet; otherwise none."""
        with tf.device(HOST):
            start = self._range.read_value()[0]
            rows = self._rows.read_value()
            return rows[tf.where(self._is_applied.read_value(), tf.size(rows, tf.int64), start) :]

    def show(self, rows: tf.Tensor) -> None:
        """Puts rows in view, at the positions 0, 1, 2, ..."""
        self._set(rows, tf.stack([tf.constant(0, tf.int64), tf.size(rows, tf.int64)]))

    def show_gradient(self, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Puts the rows of a gradient in view; returns their positions, and the end of these.

        The order of the reads and writes below matters: `_start_of_next` reads the previous view.
        """
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
        """Returns the first position of a gradient of `size` rows, given the unapplied ones."""
        # The gradient of the previous view is dropped, unless it was applied or has no rows.
        before = self._range.read_value()
        is_dropped = ~self._is_applied.read_value() & (before[1] > before[0])
        dropped = self._dropped.read_value()
        # Beyond the limit, all are forgotten, so that the memory of a program that computes
        # gradients without ever applying them does not grow.
        dropped = dropped[: tf.where(tf.shape(dropped)[0] < _MAX_DROPPED, _MAX_DROPPED, 0)]
        dropped = tf.concat([dropped, before[tf.newaxis][: tf.cast(is_dropped, tf.int32)]], 0)
        self._dropped.assign(dropped)
        # After all starts, so that an old gradient has a position before the view; and the first of
        # n + 1 candidates whose end differs from all n ends, so that its length differs.
        starts, ends = dropped[:, 0], dropped[:, 1]
        least = tf.reduce_max(tf.concat([starts + 1, [0]], 0))
        starts = tf.range(least, least + tf.size(ends, tf.int64) + 1)
        start = tf.raw_ops.ListDiff(x=starts, y=ends - size).out[0]
        # Without rows, nothing is updated, and the table may have no row to pad the view with.
        return tf.where(size > 0, start, 0)

    def _set(self, rows: tf.Tensor, within: tf.Tensor) -> None:
        with tf.device(HOST):
            self._rows.assign(rows)
            self._range.assign(within)
        self.version = object()

    def rows(self, positions: tf.Tensor | None = None, gradient: Any = None) -> tf.Tensor:
        """Returns the numbers of the rows in view.

        Without `positions`, the result may start with padding, which `in_view` removes.

        Args:
          positions: positions of the rows; None is all of them.
          gradient: the gradient that is being applied, if known.

        Raises:
          tf.errors.InvalidArgumentError: if the rows in view are not those of the gradient.
        """
        with tf.device(HOST), tf.control_dependencies(self._checks(positions, gradient)):
            return (
                self._rows.read_value() if positions is None else self._rows.sparse_read(positions)
            )

    def in_view(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
        """Removes the elements of padding from tensors with one element for each of `rows`."""
        with tf.device(HOST):
            start = tf.unstack(self._range.read_value())[0]
            if tf.executing_eagerly() and not start:
                return list(tensors)
            return [each[start:] for each in tensors]

    def mark_applied(self) -> None:
        """Records that the gradient of the rows in view was applied."""
        with tf.device(HOST):
            self._is_applied.assign(True)

    def _checks(self, positions: tf.Tensor | None, gradient: Any) -> list[tf.Operation]:
        """Returns operations that fail the step if the rows in view are not those of a gradient."""
        applied = positions if gradient is None else gradient
        if applied is None:
            return []
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        # Cached, because an update accesses several variables for one gradient.
        checked, where, checks = self._checked
        if checked() is not applied or where != (graph, self.version):
            checks = self._new_checks(applied)
            self._checked = weakref.ref(applied), (graph, self.version), checks
        return checks

    def _new_checks(self, gradient: Any) -> list[tf.Operation]:
        """Returns operations that compare a gradient with the view.

        Args:
          gradient: `tf.IndexedSlices`, a dense gradient, or only the positions of one.
        """
        start, end = tf.unstack(self._range.read_value())
        # See [Note: positions in the view]. What is unknown about the gradient is not checked.
        count, positions = end, gradient
        if isinstance(gradient, tf.IndexedSlices):
            positions = gradient.indices
            count = end if gradient.dense_shape is None else gradient.dense_shape[0]
        elif gradient.dtype.is_floating:
            count, positions = tf.shape(gradient)[0], end
        are_in_view = tf.reduce_all(tf.cast(positions, tf.int64) >= start)
        # In the graph of a server, `==` would compare the identity of tensors.
        is_current = tf.equal(tf.cast(count, tf.int64), end) & are_in_view
        check = assert_in_step(
            is_current,
            [
                "The gradient of an embedding must be applied before the next one is computed, or "
                "not at all. Received: a gradient computed before the last one; it ends at "
                "position",
                count, "and the last one at", end, "Apply each gradient as soon as it is computed, "
                "or compute one gradient of the sum of the losses.",
            ],
        )  # fmt: skip
        return [] if check is None else [check]
