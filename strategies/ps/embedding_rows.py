"""Embedding tables on the servers: their variables in a worker, and updates of their rows.

In a worker, each row has a global number, `row * servers + server`, where `row` is its number on
its server, or a reference to it (see [Note: references to rows] in variables/row_view.py). The
worker sends the numbers of the rows in view with their gradients; each server puts
its own rows in view and runs the optimizer's update on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.ps.registry import RemoteVariable
from strategies.ps.updates import Transfer, VariableUpdate
from strategies.ps.variables import ServerView, active_view, current_server
from strategies.reduction.row_wire import RowWire
from strategies.reduction.sparse import is_marked_reduced, sum_by_index
from strategies.variables.growable_array import GrowableArray
from strategies.variables.row_variable import RowVariable
from strategies.variables.row_view import RowView

SlotMaker = Callable[[str, np.ndarray], Sequence[RowVariable]]


class RemoteRowVariable(RowVariable):
    """A table or slot variable in a worker; during an update, it stands for a server's part.

    Args:
      parts: the variable's part on each server.
      row: the initial value of new rows, [width].
      trainable: whether this is the table's variable and not a slot variable.
      name: a part of the names of the slot variables.
      strategy: the strategy under which the variable is created.
      make_slot: creates a slot variable on all servers, from its name and the initial row.
      wire: form in which gradients are sent to the servers; None sends them as they are.

    Attributes:
      wire: see above.
    """

    def __init__(
        self,
        parts: Sequence[RowVariable],
        row: Any,
        trainable: bool,
        name: str,
        strategy: tf.distribute.Strategy | None,
        make_slot: SlotMaker | None = None,
        wire: RowWire | None = None,
    ):
        super().__init__(RowView(), row, trainable, name, strategy)
        self.wire = RowWire(int(self.shape[1])) if wire is None else wire
        self._parts = tuple(parts)
        self._make_slot = make_slot
        # Identifies the variable in updates; it has no slices, because workers hold no copy.
        self.remote = RemoteVariable(f"rows/{name}", name, (), self.dtype, ())

    @property
    def servers(self) -> int:
        """The number of servers."""
        return len(self._parts)

    @property
    def view(self) -> RowView:
        """The rows in view: in an update on a server, that server's rows; otherwise global ones."""
        server = current_server()
        return self._rows_in_view if server is None else self._parts[server].view

    @property
    def table(self) -> GrowableArray:
        """All rows of the server on which the update runs."""
        server = current_server()
        if server is None:
            raise ValueError(
                "A worker cannot read or change the variable of an embedding whose rows are on "
                f"parameter servers. Received: {self.name!r}. Read rows with layer.rows, and set "
                "them with layer.set_rows."
            )
        return self._parts[server].table

    def value(self, no_copy: bool = False) -> tf.Tensor:
        """Returns the rows in view to an optimizer, on a server or in a worker's program.

        Raises:
          ValueError: if the reader is not an optimizer.
        """
        if current_server() is None and super()._is_updating():
            return self.token()
        return super().value(no_copy)

    def _is_updating(self) -> bool:
        # A server runs the update of any function that a worker passed to `extended.update`.
        return current_server() is not None or super()._is_updating()

    def remove_former_slots(self) -> None:
        """Does nothing: slot variables on the servers belong to other workers as well.

        They are not saved; see `RowStore.saved_slots`.
        """

    def _new_slot(self, name: str, key: str, row: np.ndarray) -> RowVariable:
        parts = () if self._make_slot is None else self._make_slot(key, row)
        return RemoteRowVariable(parts, row, False, name, self._distribute_strategy)


class RowUpdate(VariableUpdate):
    """An update of the rows in view."""

    variable: RemoteRowVariable

    def __post_init__(self) -> None:
        super().__post_init__()
        view = self.variable.view
        in_view = [leaf for leaf in self.leaves if self.transfer(leaf) is Transfer.IN_VIEW]
        gradient = in_view[0] if in_view else None
        (global_rows,) = view.in_view(view.rows(gradient=gradient))
        if self.variable.trainable:
            view.mark_applied()
        self._owners = global_rows % self.variable.servers
        self._rows = global_rows // self.variable.servers
        exact = RowWire(int(self.variable.shape[1]))
        # Only gradients are rounded. Other arguments may be values of rows.
        self._wires = [
            self.variable.wire if isinstance(leaf, tf.IndexedSlices) else exact for leaf in in_view
        ] or [exact]
        # If there are no per-row arguments, a tensor of width 0 still carries the row numbers.
        self._in_view = [self._dense(leaf) for leaf in in_view] or [
            tf.zeros([tf.size(global_rows), 0])
        ]

    def transfer(self, leaf: Any) -> Transfer:
        """Returns how an argument gets to the servers; one of rank 2 has a row per row in view."""
        if isinstance(leaf, tf.IndexedSlices):
            return Transfer.IN_VIEW
        if not isinstance(leaf, tf.Tensor):
            return Transfer.FIXED
        return Transfer.IN_VIEW if leaf.shape.rank == 2 else Transfer.REPLICATED

    def _dense(self, leaf: Any) -> tf.Tensor:
        """Returns an argument as a dense tensor, in the order of the rows in view."""
        if is_marked_reduced(leaf):
            return leaf.values
        return self.variable.view.in_view(tf.convert_to_tensor(leaf))[0]

    @property
    def arguments(self) -> int:
        """The number of pairs of values and row numbers that are sent."""
        return len(self._in_view)

    def pieces(self, server: int) -> Iterator[tf.Tensor]:
        """Yields the tensors for a server: per argument in view, the values and row numbers."""
        is_owned = self._owners == server
        for value, wire in zip(self._in_view, self._wires, strict=True):
            yield wire.encode(tf.boolean_mask(value, is_owned))
            yield tf.boolean_mask(self._rows, is_owned)

    def placeholders(self) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
        """Yields pairs of placeholders for the tensors that `pieces` yields."""
        for value, wire in zip(self._in_view, self._wires, strict=True):
            sent = wire.encode(tf.zeros([0, value.shape[1]], value.dtype))
            values = tf.compat.v1.placeholder(sent.dtype, [None, sent.shape[1]])
            yield values, tf.compat.v1.placeholder(tf.int64, [None])

    def apply(
        self,
        view: ServerView,
        pieces: Sequence[tuple[tf.Tensor, tf.Tensor]],
        replicated: dict[int, Any],
        steps: tf.Tensor,
    ) -> None:
        """Applies the update on a server.

        Args:
          view: the view of that server.
          pieces: the pairs that the server received. Each row occurs once for each step at most.
          replicated: the arguments that all servers get, by their position.
          steps: the number of steps in the push, a scalar.
        """
        received = [
            wire.decode(values, value.shape[1])
            for (values, _), value, wire in zip(pieces, self._in_view, self._wires, strict=True)
        ]
        references = pieces[0][1]

        def sum_steps() -> list[tf.Tensor]:
            distinct, _, sums = sum_by_index(references, *received)
            return [distinct, *sums]

        references, *each = tf.cond(steps > 1, sum_steps, lambda: [references, *received])
        with active_view.activate(view):
            rows_in_view = self.variable.view
            # See [Note: references to rows] in row_view.py.
            references, each = rows_in_view.drop_freed(references, *each)
            sums = iter(each)
            leaves = []
            for position, leaf in enumerate(self.leaves):
                if self.transfer(leaf) is Transfer.IN_VIEW:
                    value = next(sums)
                    is_sparse = isinstance(leaf, tf.IndexedSlices)
                    leaf = _sparse(value) if is_sparse else value
                leaves.append(replicated.get(position, leaf))
            args, kwargs = tf.nest.pack_sequence_as(self.args, leaves)
            rows_in_view.show(rows_in_view.rows_of(references))
            self.fn(self.variable, *args, **kwargs)


def _sparse(value: tf.Tensor) -> tf.IndexedSlices:
    return tf.IndexedSlices(value, tf.range(tf.shape(value)[0]), tf.shape(value))
