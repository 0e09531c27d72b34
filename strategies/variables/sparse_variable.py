"""Variables of which an optimizer sees the rows in view alone: a step costs what it touches.

A table of an embedding has as many rows as ids have come, and a step touches a few thousand of
them. Stock optimizers are written for whole variables. So a table's variable and the optimizer's
slot variables answer as if they were the touched rows alone: what reads them gathers these rows,
what writes them scatters. `update_step` of any optimizer that works element by element runs on
that unchanged, Keras 3's and tf_keras's, and rows that are not touched stay as they are.

Which rows are in view is known when the gradient is: it leaves the backward pass as
`tf.IndexedSlices` with each row once, its indices the positions in the view (`active_rows`). In
these terms it is a gradient as any other: it can be clipped, scaled, scattered or made dense.
The rows themselves stand in a variable, for the update may be another function than the backward
pass. Nothing hooks into the update, so it works without a strategy as well.

The other half is that slot variables become such variables too. Under this package's strategies
`extended` makes them, where an optimizer asks for a variable beside a table's. Without a strategy
Keras asks in no such words; a variable creator then knows them by the table's name in theirs.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import numpy as np
import tensorflow as tf

from strategies._keras import (
    gradient_in_update,
    is_legacy,
    is_optimizer,
    is_writing_h5,
)
from strategies._tensorflow import ResourceVariable
from strategies.frames import innermost
from strategies.variables.active_rows import ActiveRows
from strategies.variables.elementwise import ELEMENTWISE, check_trains_rows, update_without_xla
from strategies.variables.growable_array import HOST, GrowableArray

_numbers = itertools.count()
_named: weakref.WeakValueDictionary[str, SparseVariable] = weakref.WeakValueDictionary()
_creators = threading.local()


class Snapshots(Protocol):
    """Takes and restores snapshots of the rows of a table's variable."""

    def take(self) -> np.ndarray:
        """Takes a snapshot; returns an array of the variable's shape that stands for it."""

    def restore(self, value: np.ndarray) -> None:
        """Restores the rows from the snapshot for which `take` returned a value."""


class SparseVariable(ResourceVariable):
    """A table's trainable variable, or a slot variable of it.

    Its own value is of one row, of which gradients are taken and which gives the shape; its rows
    are elsewhere.

    Args:
      view: the rows in view.
      row: the row that new ones are set to, [width].
      trainable: whether it is the table's, and not a slot variable.
      name: part of the names of the slot variables.
      strategy: the strategy that it is made under.
      rows: array of all rows, if there is one already.
    """

    def __init__(
        self,
        view: ActiveRows,
        row: Any,
        trainable: bool,
        name: str,
        strategy: tf.distribute.Strategy | None,
        rows: GrowableArray | None = None,
    ):
        with tf.init_scope(), tf.device(HOST):
            super().__init__(
                tf.convert_to_tensor(row)[tf.newaxis],
                trainable=trainable,
                name=name,
                distribute_strategy=strategy,
            )
        self._rows_in_view = view
        self.table_name = name
        if rows is None:
            rows = GrowableArray(tuple(self.shape[1:]), self.dtype, expected=view.expected)
        if not trainable:
            rows.fill = np.array(row)
        self._array = rows
        self.slots: dict[str, SparseVariable] = {}
        # By the names of the slot variables.
        self._optimizers: dict[str, weakref.ref[Any]] = {}
        self._on_slot: Callable[[str, SparseVariable], None] = lambda name, slot: None
        self._resized_for: object = None
        # Of a table's variable, not of slot variables.
        self.snapshots: Snapshots | None = None
        self.on_slots_removed: Callable[[], None] = lambda: None
        if trainable:
            _named[name] = self

    @property
    def view(self) -> ActiveRows:
        """The rows in view."""
        return self._rows_in_view

    @property
    def table(self) -> GrowableArray:
        """The array of all rows."""
        return self._array

    def adopt_array(self, rows: GrowableArray) -> None:
        """Replaces the array of all rows."""
        rows.fill = self._array.fill
        self._array = rows

    def token(self) -> tf.Tensor:
        """Returns a tensor whose gradient is the variable's."""
        return self._read_variable_op()

    def on_slot(self, function: Callable[[str, SparseVariable], None]) -> None:
        """Registers a function that is called with each new slot variable and its name."""
        self._on_slot = function

    def make_slot(self, name: str, initial_value: Any, dtype: Any = None) -> SparseVariable:
        """Makes a slot variable of this variable.

        Args:
          name: name that the optimizer gives it.
          initial_value: a value of the shape of this variable, or a function that returns one.
          dtype: dtype of its elements; None is that of the value.

        Raises:
          ValueError: if it is not one row for each row, or the optimizer that makes it is one that
            is not right on the touched rows alone.
        """
        optimizer = innermost(is_optimizer)
        if optimizer is not None:
            check_trains_rows(optimizer)
            update_without_xla(optimizer)
        with tf.init_scope(), tf.device(HOST):
            value = initial_value() if callable(initial_value) else initial_value
            value = np.array(tf.cast(value, dtype or value.dtype))
        if value.shape != tuple(self.shape):
            raise ValueError(
                "An embedding is trained by optimizers that have a state of its shape. Received: "
                f"{name!r} of shape {value.shape}, for {tuple(self.shape)}. Choose one of "
                f"{', '.join(ELEMENTWISE)}."
            )
        # Keras 3 puts it behind the variable's name, tf_keras before it.
        before, _, behind = name.partition(self.table_name)
        key = behind.strip("_:") or before.split("/")[0]
        if optimizer is not None and all(
            each() is not optimizer for each in self._optimizers.values()
        ):
            self._remove_slots_of_former_optimizers()
        while key in self.slots:  # another optimizer's
            key += "_"
        if optimizer is not None:
            self._optimizers[key] = weakref.ref(optimizer)
        return self.add_slot(key, self._new_slot(name, key, value[0]))

    def _remove_slots_of_former_optimizers(self) -> None:
        """Removes the slot variables of optimizers that are gone, as by another `compile`.

        What is saved would have both, and what is restored would give the next optimizer the first
        one's.
        """
        if self._optimizers:
            gc.collect()  # a model and its optimizer refer to each other
        removed = [key for key, optimizer in self._optimizers.items() if optimizer() is None]
        for key in removed:
            del self._optimizers[key], self.slots[key]
        if removed:
            self.on_slots_removed()

    def add_slot(self, key: str, slot: SparseVariable) -> SparseVariable:
        """Registers a slot variable by a name; returns it."""
        self.slots[key] = slot
        self._on_slot(key, slot)
        return slot

    def _new_slot(self, name: str, key: str, row: np.ndarray) -> SparseVariable:
        del key
        return SparseVariable(self.view, row, False, name, self._distribute_strategy)

    def _ensure_rows(self) -> None:
        """Grows the array to the rows that the store has allocated."""
        version = (self.view.version, tf.compat.v1.get_default_graph())
        if tf.executing_eagerly() or self._resized_for != version:
            self.table.resize(self.view.length.read_value())
        self._resized_for = version

    def _active(self, positions: tf.Tensor | None = None) -> tf.Tensor:
        """Returns the numbers of the rows in view, for the gradient that is applied now."""
        self._ensure_rows()
        return self.view.rows(positions, gradient_in_update())

    def _write(
        self, write: Callable[..., None], values: Any, positions: tf.Tensor | None = None
    ) -> None:
        """Writes to the rows in view, all or those at some positions."""
        rows, values = self._active(positions), tf.convert_to_tensor(values)
        if positions is None:
            rows, values = self.view.in_view(rows, values)
        write(rows, values)
        if self.trainable:
            self.view.mark_applied()

    def value(self, no_copy: bool = False) -> tf.Tensor:
        """Returns the rows in view."""
        del no_copy
        return self.table.gather(self._active())

    def read_value(self) -> tf.Tensor:
        """Returns the rows in view."""
        return self.value()

    def sparse_read(self, indices: tf.Tensor, name: Any = None) -> tf.Tensor:
        """Returns rows by their positions in the view; `tf.gather` calls it."""
        del name
        return self.table.gather(self._active(indices))

    @property
    def _handle(self) -> Any:
        # Eager operations on variables read them by this attribute, from C++, not by `value`.
        if tf.executing_eagerly() and gradient_in_update() is not None:
            self._in_view_now = ResourceVariable(self.value(), trainable=False)
            return self._in_view_now.handle
        return self._own_handle

    @_handle.setter
    def _handle(self, handle: Any) -> None:
        self._own_handle = handle

    @property
    def handle(self) -> Any:
        """The handle of the row that stands for the table.

        Raises:
          ValueError: if one of tf_keras's legacy optimizers asks for it, to write to it.
        """
        asking = inspect.currentframe().f_back.f_locals.get("self")  # type: ignore[union-attr]
        if is_legacy(asking):
            check_trains_rows(asking)
        return self._handle

    def numpy(self) -> np.ndarray:
        """Returns one row: for a table's variable, the token of a snapshot that it takes.

        Raises:
          ValueError: if it is a table's variable, and is written to a file without its rows.
        """
        if self.snapshots is None:
            return self._stand_in()
        if is_writing_h5():
            self._refuse_array()
        return self.snapshots.take()

    def _stand_in(self) -> np.ndarray:
        return np.array(self._read_variable_op())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Returns the row that stands for a slot variable.

        Raises:
          ValueError: if it is a table's variable, whose rows the array would not have.
        """
        del copy
        if self.snapshots is not None:
            self._refuse_array()
        return np.asarray(self._stand_in(), dtype)

    def _refuse_array(self) -> NoReturn:
        raise ValueError(
            "An embedding's rows are no array. Received: "
            f"{self.table_name!r} made into one, as for a model's .h5 file. Save the model to "
            "a path that ends in '.keras', its weights to one that ends in '.weights.h5', or "
            "take the layer's rows() or save_rows()."
        )

    def assign(
        self, value: Any, use_locking: Any = None, name: Any = None, read_value: bool = True
    ) -> Any:
        """Sets the rows in view."""
        del use_locking, name, read_value
        if (
            tf.executing_eagerly()
            and gradient_in_update() is None
            and self._restore_snapshot(value)
        ):
            return self
        self._write(self.table.update, value)
        return self

    def _restore_snapshot(self, value: Any) -> bool:
        """Restores a value of `numpy`, which model.set_weights assigns; returns whether it was one.

        Raises:
          ValueError: if it is another one of the shape of these.
        """
        if tuple(getattr(value, "shape", ())) != tuple(self.shape):
            return False
        if self.snapshots is not None:
            self.snapshots.restore(np.array(value))
        elif not np.array_equal(np.array(value), self._stand_in()):
            raise ValueError(
                "The state that an optimizer has for an embedding's rows is set with these. "
                f"Received: other values for {self.name!r}. Load the weights or the layer's "
                "load_rows."
            )
        return True

    def assign_add(
        self, delta: Any, use_locking: Any = None, name: Any = None, read_value: bool = True
    ) -> Any:
        """Adds to the rows in view."""
        del use_locking, name, read_value
        self._write(self.table.add, delta)
        return self

    def assign_sub(
        self, delta: Any, use_locking: Any = None, name: Any = None, read_value: bool = True
    ) -> Any:
        """Subtracts from the rows in view."""
        return self.assign_add(-tf.convert_to_tensor(delta))

    def scatter_add(
        self, sparse_delta: tf.IndexedSlices, use_locking: bool = False, name: Any = None
    ) -> Any:
        """Adds to rows, named by their positions in the view."""
        del use_locking, name
        self._write(self.table.add, sparse_delta.values, sparse_delta.indices)
        return self

    def scatter_sub(
        self, sparse_delta: tf.IndexedSlices, use_locking: bool = False, name: Any = None
    ) -> Any:
        """Subtracts from rows, named by their positions in the view."""
        return self.scatter_add(tf.IndexedSlices(-sparse_delta.values, sparse_delta.indices))

    def scatter_update(
        self, sparse_delta: tf.IndexedSlices, use_locking: bool = False, name: Any = None
    ) -> Any:
        """Sets rows, named by their positions in the view."""
        del use_locking, name
        self._write(self.table.update, sparse_delta.values, sparse_delta.indices)
        return self


def new_name() -> str:
    """Returns a name for a table's variable that is no prefix of another one's."""
    return f"embeddings_rows_{next(_numbers)}_"


def recognize_slots() -> None:
    """Recognizes slot variables by their names, where there is no strategy that makes them.

    From now on, in this thread. Other variables are not concerned.

    Raises:
      RuntimeError: if it is called inside a `tf.variable_creator_scope` of others.
    """
    with tf.init_scope():
        # Keras's clear_session replaces the graph that has the creators, in eager mode too.
        graph = tf.compat.v1.get_default_graph()
        if getattr(_creators, "graph", None) is graph:
            return
        scope = contextlib.ExitStack()
        scope.enter_context(tf.variable_creator_scope(_create))
    _creators.graph, _creators.scope = graph, scope


def table_asked_for(kwargs: dict[str, Any]) -> SparseVariable | None:
    """Returns the table's variable of a new variable's name; None if it has another name.

    Keras 3 makes a layer's weights later where it builds a model by trying it out.
    """
    return _named.get(kwargs.get("name") or "")


def _create(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
    name = kwargs.get("name") or ""
    table = table_asked_for(kwargs)
    if table is not None:
        return table
    # Without a value it is one that TensorFlow makes for what it loads from a SavedModel.
    is_slot = not kwargs.get("trainable") and kwargs.get("initial_value") is not None
    if "embeddings_rows_" in name and is_slot:
        for known, variable in list(_named.items()):
            if known in name:
                return variable.make_slot(name, kwargs["initial_value"], kwargs.get("dtype"))
    return next_creator(**kwargs)
