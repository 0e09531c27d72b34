"""Variables that show an optimizer only the rows of the current step.

[Note: the rows in view]
An embedding table has a row for every id seen so far, but a step touches only a few thousand of
them, and stock optimizers are written for whole variables. So a table's variable and the
optimizer's slot variables act as if they consisted only of the touched rows: reading them gathers
these rows, writing them scatters. The `update_step` of any element-wise optimizer of Keras 3 or
tf_keras runs on them unchanged, and its cost depends only on the touched rows. Other rows are not
changed.

The rows in view are set when the gradient is computed. The backward pass returns the gradient as
`tf.IndexedSlices` with each row once, indexed by positions in the view (`row_view.py`). It can be
clipped, scaled, scattered or converted to a dense tensor like any other gradient. The numbers of
the rows in view are stored in a variable, because the update may be in another function than the
backward pass. There are no hooks in the update, so it also works without a strategy.

All other code that reads the variable, such as a penalty, a norm or a tied output, needs the whole
table. The rows in view would silently be wrong values. So the variable looks for an optimizer on
Python's stack. If there is none, `read_whole` returns the matrix that a `keras.layers.Embedding`
would have, with its gradient, or raises an error.

Slot variables must also be such variables. Under this package's strategies, `extended` creates them
when an optimizer requests a variable colocated with a table's variable. Without a strategy, Keras
does not request colocation, so a variable creator recognizes slot variables by their names, which
contain the table's name.
"""

from __future__ import annotations

import gc
import inspect
import itertools
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Protocol

import numpy as np
import tensorflow as tf

from strategies.compat.call_stack import innermost_self
from strategies.compat.keras import (
    gradient_in_update,
    is_legacy,
    is_optimizer,
    is_read_by_get_weights,
    is_read_by_optimizer,
    is_writing_h5,
)
from strategies.compat.tensorflow import ResourceVariable, add_variable_creator
from strategies.reduction.sparse import as_tensors, sum_by_position
from strategies.utils.devices import HOST
from strategies.variables.growable_array import GrowableArray
from strategies.variables.optimizer_traits import ELEMENTWISE, check_trains_rows, update_without_xla
from strategies.variables.rounded_array import FLOAT32, ArrayDtypes, make_array
from strategies.variables.row_view import RowView

_numbers = itertools.count()
_named: weakref.WeakValueDictionary[str, RowVariable] = weakref.WeakValueDictionary()


class Snapshots(Protocol):
    """Snapshots of the rows of a table's variable."""

    def take(self) -> np.ndarray:
        """Takes a snapshot; returns its token, an array of the variable's shape."""

    def restore(self, value: np.ndarray) -> None:
        """Restores the rows from the snapshot of a token that `take` returned."""


class RowVariable(ResourceVariable):
    """Trainable variable of a table, or one of its slot variables.

    The value of the underlying resource is a single row, which defines the shape, and with respect
    to which gradients are computed. The rows of the table are in a `GrowableArray`.

    Args:
      view: the rows in view.
      row: initial value of the single row, and of new rows of a slot variable, [width].
      trainable: whether this is a table's variable rather than a slot variable.
      name: name of the variable, which the names of its slot variables contain.
      strategy: strategy that the variable is created under.
      rows: array of all rows, if it already exists.
      dtypes: dtypes in which rows and slot variables are stored.
    """

    def __init__(
        self,
        view: RowView,
        row: Any,
        trainable: bool,
        name: str,
        strategy: tf.distribute.Strategy | None,
        rows: GrowableArray | None = None,
        dtypes: ArrayDtypes = FLOAT32,
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
        self._dtypes = dtypes
        if rows is None:
            rows = make_array(int(self.shape[1]), dtypes.rows if trainable else dtypes.slots, view)
        if not trainable:
            rows.fill = np.array(row)
        self._array = rows
        self.slots: dict[str, RowVariable] = {}
        # Optimizers by the names of their slot variables.
        self.optimizers: dict[str, weakref.ref[Any]] = {}
        self._on_slot: Callable[[str, RowVariable], None] = lambda name, slot: None
        self._resized_for: object = None
        # Set for a table's variable, not for slot variables.
        self.snapshots: Snapshots | None = None
        # Returns the matrix of all rows, with a gradient; set for a table's variable.
        self.read_whole: Callable[[], tf.Tensor] = self.refuse_read
        self.on_slots_removed: Callable[[], None] = lambda: None
        # Updates that wait for the rows of their step, and the graphs in which they were made; see
        # `defer`.
        self._deferred: list[tuple[Any, Callable[[], Any]]] = []
        if trainable:
            _named[name] = self

    @property
    def view(self) -> RowView:
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
        """Returns the single row as a tensor, whose gradient is that of the variable."""
        return self._read_variable_op()

    def make_slot_array(self, fill: Any) -> GrowableArray:
        """Returns a new array for a slot variable with initial value `fill`."""
        return make_array(int(self.shape[1]), self._dtypes.slots, self.view, fill)

    def on_slot(self, function: Callable[[str, RowVariable], None]) -> None:
        """Registers a function to call with the name of each new slot variable and the variable."""
        self._on_slot = function

    def make_slot(self, name: str, initial_value: Any, dtype: Any = None) -> RowVariable:
        """Creates a slot variable of this variable.

        Args:
          name: name that the optimizer gives the slot variable.
          initial_value: value of this variable's shape, or a function that returns one.
          dtype: dtype of the elements; None is the dtype of the value.

        Raises:
          ValueError: if the value does not have this variable's shape, or the optimizer cannot
            train only the touched rows.
        """
        optimizer = innermost_self(is_optimizer)
        if optimizer is not None:
            check_trains_rows(optimizer)
            update_without_xla(optimizer)
        with tf.init_scope(), tf.device(HOST):
            value = initial_value() if callable(initial_value) else initial_value
            value = np.array(tf.cast(value, dtype or value.dtype))
        if value.shape != tuple(self.shape):
            raise ValueError(
                "The optimizer state of an embedding must have the shape of its rows. Received: "
                f"{name!r} of shape {value.shape}, for {tuple(self.shape)}. Use one of "
                f"{', '.join(ELEMENTWISE)}."
            )
        # Keras 3 puts the slot's name behind the variable's name, tf_keras before it.
        before, _, behind = name.partition(self.table_name)
        key = behind.strip("_:") or before.split("/")[0]
        if optimizer is not None and all(
            each() is not optimizer for each in self.optimizers.values()
        ):
            self.remove_former_slots()
        while key in self.slots:  # the slot of another optimizer
            key += "_"
        if optimizer is not None:
            self.optimizers[key] = weakref.ref(optimizer)
        return self.add_slot(key, self._new_slot(name, key, value[0]))

    def defer(self, update: Callable[[], Any]) -> None:
        """Defers an update until `run_deferred`.

        With several replicas, the rows of a step are put in view when its gradients are summed.
        Keras 3 applies weight decay before that; otherwise, the previous step's rows would decay.
        """
        self._deferred.append((_graph(), update))

    def run_deferred(self) -> None:
        """Makes the deferred updates of the running step."""
        deferred, self._deferred = self._deferred, []
        for graph, update in deferred:
            if graph is _graph():  # those of another graph are left from a trace that failed
                update()

    def find_former_slots(self) -> None:
        """Makes sure that `is_former_slot` recognizes deleted optimizers if there were several."""
        if len({id(optimizer) for optimizer in self.optimizers.values()}) > 1:
            gc.collect()  # a model and its optimizer form a reference cycle

    def is_former_slot(self, key: str) -> bool:
        """Returns whether the optimizer of a slot variable has been deleted."""
        return key in self.optimizers and self.optimizers[key]() is None

    def remove_former_slots(self) -> None:
        """Removes the slot variables of deleted optimizers, for example after another `compile`.

        Otherwise, a save would include them, and a restore would give them to the next optimizer.
        """
        if self.optimizers:
            gc.collect()  # a model and its optimizer form a reference cycle
        removed = [key for key in self.optimizers if self.is_former_slot(key)]
        for key in removed:
            del self.optimizers[key], self.slots[key]
        if removed:
            self.on_slots_removed()

    def add_slot(self, key: str, slot: RowVariable) -> RowVariable:
        """Registers a slot variable under a name; returns it."""
        self.slots[key] = slot
        self._on_slot(key, slot)
        return slot

    def _new_slot(self, name: str, key: str, row: np.ndarray) -> RowVariable:
        del key
        return RowVariable(
            self.view, row, False, name, self._distribute_strategy, dtypes=self._dtypes
        )

    def _ensure_rows(self) -> None:
        """Grows the array to the number of rows that the store has allocated."""
        # In a graph, once per view, because an update accesses every variable several times.
        version = (self.view.version, tf.compat.v1.get_default_graph())
        if tf.executing_eagerly() or self._resized_for != version:
            self.table.resize(self.view.length.read_value())
        self._resized_for = version

    def _active(
        self, positions: tf.Tensor | None = None, gradient: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Returns the numbers of the rows in view for the gradient that is being applied.

        Args:
          positions: positions of the rows; None is all of them.
          gradient: positions of the gradient, used if no `update_step` is running.
        """
        self._ensure_rows()
        applied = gradient_in_update()
        return self.view.rows(positions, gradient if applied is None else applied)

    def _write(
        self, write: Callable[..., None], values: Any, positions: tf.Tensor | None = None
    ) -> None:
        """Writes to the rows in view, or only to those at `positions`."""
        rows, values = self._active(positions), tf.convert_to_tensor(values)
        if positions is None:
            rows, values = self.view.in_view(rows, values)
        self._write_rows(write, rows, values)

    def _write_rows(
        self, write: Callable[[tf.Tensor, tf.Tensor], None], rows: tf.Tensor, values: tf.Tensor
    ) -> None:
        write(rows, values)
        if self.trainable:
            self.view.mark_applied()

    def value(self, no_copy: bool = False) -> tf.Tensor:
        """Returns the rows in view to an optimizer, and the whole table to other code.

        Raises:
          ValueError: if the reader is not an optimizer, and the whole table is not one matrix.
        """
        del no_copy
        return self.table.gather(self._active()) if self._is_updating() else self.read_whole()

    def read_value(self) -> tf.Tensor:
        """Returns the same as `value`."""
        return self.value()

    def sparse_read(self, indices: tf.Tensor, name: Any = None) -> tf.Tensor:
        """Returns rows by their positions in `value`; `tf.gather` calls this method."""
        del name
        if self._is_updating():
            return self.table.gather(self._active(indices))
        return tf.gather(self.read_whole(), indices)

    def gather_nd(self, indices: tf.Tensor, name: Any = None) -> tf.Tensor:
        """Returns elements by their positions in `value`."""
        return tf.gather_nd(self.value(), indices, name=name)

    def _is_updating(self) -> bool:
        return is_read_by_optimizer()

    def refuse_read(self, received: str = "the optimizer's state of the rows") -> NoReturn:
        """Raises ValueError: the table cannot be read as a variable."""
        raise ValueError(
            "Only an optimizer can read the rows of an embedding as a variable, unless they form "
            "a matrix like that of a keras.layers.Embedding: all in this process, in one table "
            "whose ids are 0, 1, 2, ... Received: a read of "
            f"{self.table_name!r}, {received}. Call the layer on the ids whose rows you need (for "
            "a tied output or a penalty), compile with AdamW (for weight decay), or call "
            "layer.rows()."
        )

    @property
    def _handle(self) -> Any:
        # The handle of the single row that stands for the table, whose gradient `token` needs.
        # Eager operations implemented in C++ would read that row through this attribute. If it is
        # None, they convert the variable instead, which calls `value`.
        if tf.executing_eagerly() and _is_operation(inspect.currentframe().f_back):  # type: ignore[union-attr]
            return None
        return self._own_handle

    @_handle.setter
    def _handle(self, handle: Any) -> None:
        self._own_handle = handle

    @property
    def handle(self) -> Any:
        """The handle of the single row that stands for the table.

        Raises:
          ValueError: if a legacy optimizer of tf_keras reads it, to write to the variable's memory.
        """
        caller = inspect.currentframe().f_back.f_locals.get("self")  # type: ignore[union-attr]
        if is_legacy(caller):
            check_trains_rows(caller)
        return self._handle

    def numpy(self) -> np.ndarray:
        """Returns the whole table; in `get_weights`, the token of a new snapshot.

        See [Note: tokens] in embedding/checkpoint/weight_tokens.py. For a slot variable, returns
        the single row that stands for it.

        Raises:
          ValueError: if a table's variable is written to a model's .h5 file, which would lack the
            rows, or if it cannot be read as a whole.
        """
        if self.snapshots is None:
            return self._single_row()
        if is_writing_h5():
            self._refuse_array()
        return self.snapshots.take() if is_read_by_get_weights() else self.value().numpy()

    def _single_row(self) -> np.ndarray:
        return np.array(self._read_variable_op())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        del copy
        return np.asarray(self.numpy(), dtype)

    def _refuse_array(self) -> NoReturn:
        raise ValueError(
            "An embedding's rows cannot be converted to an array. Received: such a conversion of "
            f"{self.table_name!r}, as for a model's .h5 file. Save the model to a path that ends "
            "in '.keras', or its weights to one that ends in '.weights.h5', or call layer.rows() "
            "or layer.save_rows()."
        )

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Sets the rows in view; outside of an update, restores the snapshot of a token."""
        if (
            tf.executing_eagerly()
            and gradient_in_update() is None
            and self._restore_snapshot(value)
        ):
            return self
        self._check_updating()
        self._write(self.table.train, value)
        return self

    def _check_updating(self) -> None:
        """Checks that an optimizer is writing, because other code does not know the rows in view.

        Raises:
          ValueError: if no optimizer is writing.
        """
        if not self._is_updating():
            raise ValueError(
                "Only an optimizer can write to the rows of an embedding as a variable. Received: "
                f"values for {self.table_name!r}. Set rows with layer.set_rows, apply a gradient "
                "with optimizer.apply_gradients, or pass tf.IndexedSlices to scatter_sub."
            )

    def _restore_snapshot(self, value: Any) -> bool:
        """Restores the rows of a token that `numpy` returned and `model.set_weights` assigns.

        Returns:
          Whether the value has the shape of a token.

        Raises:
          ValueError: if the value has the shape of a token but was not returned by `numpy`.
        """
        if tuple(getattr(value, "shape", ())) != tuple(self.shape):
            return False
        if self.snapshots is not None:
            self.snapshots.restore(np.array(value))
        elif not np.array_equal(np.array(value), self._single_row()):
            raise ValueError(
                "The optimizer state of an embedding's rows can only be set together with the "
                f"rows. Received: other values for {self.name!r}. Load the weights, or call "
                "layer.load_rows."
            )
        return True

    def assign_add(self, delta: Any, *args: Any, **kwargs: Any) -> Any:
        """Adds to the rows in view."""
        self._check_updating()
        self._write(self.table.add, delta)
        return self

    def assign_sub(self, delta: Any, *args: Any, **kwargs: Any) -> Any:
        """Subtracts from the rows in view."""
        return self.assign_add(-tf.convert_to_tensor(delta))

    def scatter_add(self, sparse_delta: tf.IndexedSlices, *args: Any, **kwargs: Any) -> Any:
        """Adds to rows, indexed by their positions in the view."""
        delta = as_tensors(sparse_delta)
        rows = self._active(gradient=delta.indices)
        # Positions may be repeated, but an array can only add to distinct rows. On a GPU, the order
        # in which values are added would not be deterministic.
        with tf.device(HOST):
            values = sum_by_position(delta.values, delta.indices, tf.size(rows))
        self._write_rows(self.table.add, *self.view.in_view(rows, values))
        return self

    def scatter_sub(self, sparse_delta: tf.IndexedSlices, *args: Any, **kwargs: Any) -> Any:
        """Subtracts from rows, indexed by their positions in the view."""
        values = -tf.convert_to_tensor(sparse_delta.values)
        return self.scatter_add(tf.IndexedSlices(values, sparse_delta.indices))

    def scatter_update(self, sparse_delta: tf.IndexedSlices, *args: Any, **kwargs: Any) -> Any:
        """Sets rows, indexed by their positions in the view."""
        new = as_tensors(sparse_delta)
        self._write(self.table.train, new.values, new.indices)
        return self


def _graph() -> tf.Graph | None:
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def _is_operation(frame: FrameType | None) -> bool:
    """Returns whether a frame is that of a generated op function, which reads variables in C++."""
    return frame is not None and Path(frame.f_code.co_filename).name.startswith("gen_")


def new_name() -> str:
    """Returns a name for a table's variable that is not a prefix of another table's name."""
    return f"embeddings_rows_{next(_numbers)}_"


def recognize_slots() -> None:
    """Makes variable creation recognize slot variables by name, without a strategy.

    This applies to the current thread, until the innermost scope in which it is called ends, such
    as that of TensorFlow's default strategy. So a layer calls it again whenever it is used. Other
    variables are not affected.
    """
    with tf.init_scope():
        add_variable_creator(_create)


def requested_table(kwargs: dict[str, Any]) -> RowVariable | None:
    """Returns the table's variable that has the requested name; None if there is none.

    When Keras 3 builds a model by tracing it, the weights are created after the variable.
    """
    return _named.get(kwargs.get("name") or "")


def _create(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
    name = kwargs.get("name") or ""
    table = requested_table(kwargs)
    if table is not None:
        return table
    # TensorFlow creates variables without an initial value when it loads a SavedModel.
    is_slot = not kwargs.get("trainable") and kwargs.get("initial_value") is not None
    if "embeddings_rows_" in name and is_slot:
        for known, variable in list(_named.items()):
            if known in name:
                return variable.make_slot(name, kwargs["initial_value"], kwargs.get("dtype"))
    return next_creator(**kwargs)


def check_identifies_rows(gradient: Any, variable: RowVariable) -> None:
    """Checks that the gradient of a table, summed over replicas, identifies its rows.

    Raises:
      ValueError: if it is a dense tensor, because replicas had gradients of different rows.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        raise ValueError(
            "With several replicas, the gradient of an embedding must be tf.IndexedSlices, which "
            f"identify its rows. Received: a dense gradient of {variable.table_name!r}, such as "
            "Keras 3's global_clipnorm and functions of gradients return. Use clipnorm or "
            "clipvalue, or leave the embedding's gradient unchanged."
        )


def check_clips_no_global_norm(optimizer: Any, variable: RowVariable) -> None:
    """Checks that an optimizer does not clip by the norm of all gradients of its worker.

    tf_keras computes the norm after the sum over workers. But each worker has the gradients of its
    own rows, so each would scale the other gradients differently, and their weights would differ.

    Raises:
      ValueError: if it does.
    """
    norm = getattr(optimizer, "global_clipnorm", None)
    if norm:
        raise ValueError(
            "global_clipnorm cannot be used with a DistributedEmbedding on several workers, "
            "because each worker may know only the gradients of its own rows. Received: "
            f"global_clipnorm={norm} in {type(optimizer).__name__}, and the table "
            f"{variable.table_name!r}. Use clipnorm or clipvalue."
        )
