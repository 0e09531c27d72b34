"""Updates of variables on the servers, and checks that they can be made slice by slice."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from strategies.compat.keras import optimizer_of, state_of, tensorflow_variable
from strategies.ps.function_key import Identity
from strategies.ps.variable_kinds import is_assignment
from strategies.ps.variables import SharedVariable, SlotVariable
from strategies.variables.optimizer_traits import (
    ON_SLICES,
    is_elementwise,
    is_per_variable,
    update_without_xla,
)
from strategies.variables.row_variable import RowVariable


class Transfer(enum.Enum):
    """How an argument of an update gets to the servers.

    Attributes:
      DENSE: each server gets its slices; those of all such arguments form one vector per dtype.
      SPARSE: each server gets the rows that belong to its slices, and their numbers.
      IN_VIEW: each server gets its own rows among those in view, and their numbers.
      REPLICATED: all servers get it. If several steps are merged, the newest value is sent.
      FIXED: not sent, because the function on the server contains it.
    """

    DENSE = "dense"
    SPARSE = "sparse"
    IN_VIEW = "in view"
    REPLICATED = "replicated"
    FIXED = "fixed"


class UpdateKey(NamedTuple):
    """The identity of an update.

    Attributes:
      variable: the name of the variable.
      code: the code of the function.
      cells: the objects in the closure of the function, such as its optimizer.
      defaults: the default arguments of the function.
      leaves: how the arguments are sent, and their dtypes and shapes.
      settings: the settings of the optimizer that the function contains as plain values.
    """

    variable: str
    code: Any
    cells: tuple[Identity, ...]
    defaults: Any
    leaves: tuple[Any, ...]
    settings: tuple[Any, ...]


@dataclass(eq=False)
class VariableUpdate:
    """One call of a function that updates a variable.

    The first argument is the step's contribution: a gradient, or a value that is added or assigned.
    Scalar arguments after it are settings, such as a learning rate.

    Attributes:
      variable: the variable.
      fn: takes the variable's part on a server, and the arguments.
      args: the arguments and keyword arguments of `fn`: tensors, `tf.IndexedSlices`, variables or
        other values.
    """

    variable: SharedVariable
    fn: Callable[..., Any]
    args: Any

    def __post_init__(self) -> None:
        self.leaves = [_as_tensor(leaf) for leaf in tf.nest.flatten(self.args)]

    @property
    def key(self) -> UpdateKey:
        """The identity of the update: two updates with equal keys run the same server function."""
        cells = tuple(Identity(cell.cell_contents) for cell in self.fn.__closure__ or ())
        code = getattr(self.fn, "__code__", self.fn)
        leaves = tuple((self.transfer(leaf), _spec(leaf)) for leaf in self.leaves)
        optimizer = optimizer_of(self.fn)
        settings = () if optimizer is None else _settings_of(optimizer)
        name, defaults = self.variable.remote.name, getattr(self.fn, "__defaults__", None)
        return UpdateKey(name, code, cells, defaults, leaves, settings)

    def transfer(self, leaf: Any) -> Transfer:
        """Returns how an argument gets to the servers."""
        if isinstance(leaf, tf.IndexedSlices):
            return Transfer.SPARSE
        if not isinstance(leaf, tf.Tensor):
            return Transfer.FIXED
        # If the variable is a scalar, all arguments have its shape. Only the first is the step's
        # contribution; the others are settings, which must not be summed.
        shape = self.variable.remote.shape
        is_dense = leaf.shape == shape and (bool(shape) or leaf is self.leaves[0])
        return Transfer.DENSE if is_dense else Transfer.REPLICATED

    def forget_function(self) -> None:
        """Drops the function, which would keep its optimizer alive, once servers have it."""
        self.fn = _raise_built_twice

    @property
    def is_mergeable(self) -> bool:
        """Whether updates of several steps may be summed; if not, each step is sent separately."""
        if not self.leaves:
            return True
        is_summed = self.transfer(self.leaves[0]) not in (Transfer.REPLICATED, Transfer.FIXED)
        return is_summed and not is_assignment(self.fn)


def are_alive(keys: Iterable[UpdateKey]) -> bool:
    """Returns whether updates with these keys can still occur."""
    return all(cell.is_alive for key in keys for cell in key.cells)


def update_if(condition: tf.Tensor, fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that updates a variable as `fn` does, but only if a condition holds."""

    def update(variable: Any, *args: Any, **kwargs: Any) -> Any:
        # In a branch, because a value computed from no examples, such as a mean, is invalid.
        def call() -> tf.Tensor:
            fn(variable, *args, **kwargs)
            return tf.constant(True)

        tf.cond(condition, call, lambda: tf.constant(False))
        return variable

    return update


def _settings_of(optimizer: Any) -> tuple[tuple[str, Any], ...]:
    """Returns an optimizer's settings that are plain values, such as its momentum.

    The trace of an update contains these values; a learning rate, in contrast, is a variable.
    """
    # Without private ones, and without `jit_compile`, which does not affect the trace.
    plain = bool, int, float, str, np.generic
    return tuple(
        (name, value)
        for name, value in sorted(vars(optimizer).items())
        if isinstance(value, plain) and not name.startswith("_") and name != "jit_compile"
    )


def _raise_built_twice(variable: Any) -> None:
    raise AssertionError("A program must be built only once.")


def _as_tensor(leaf: Any) -> Any:
    """Converts variables and NumPy arrays to tensors; leaves everything else as it is."""
    if isinstance(leaf, tf.IndexedSlices) or leaf is None or isinstance(leaf, (str, bool)):
        return leaf
    if isinstance(leaf, (int, float)):
        return leaf
    return tf.convert_to_tensor(leaf)


def _spec(leaf: Any) -> Any:
    if isinstance(leaf, tf.IndexedSlices):
        return leaf.values.dtype
    return (leaf.dtype, tuple(leaf.shape)) if isinstance(leaf, tf.Tensor) else leaf


def check_applicable(updates: Sequence[VariableUpdate]) -> None:
    """Checks that updates can be made slice by slice.

    Raises:
      ValueError: if an update cannot be made in this way.
    """
    for update in updates:
        optimizer = optimizer_of(update.fn)
        if optimizer is None:
            continue
        update_without_xla(optimizer)
        name = type(optimizer).__name__
        if not is_per_variable(optimizer):
            raise ValueError(
                "An optimizer on parameter servers must update each variable independently. "
                f"Received: {name}, which has state that is common to all variables. Use Adam, or "
                "mode='geo', in which each worker has its own optimizer."
            )
        _check_state(update, optimizer)
        if len(update.variable.remote.slices) > 1 and not is_elementwise(optimizer):
            raise ValueError(
                "A variable that is sliced over several servers requires an element-wise "
                f"optimizer, one of {', '.join(ON_SLICES)}. Received: {name} for "
                f"{update.variable.remote.path!r}. Keep variables whole with min_slice_size=None, "
                "or set `elementwise = True` in the optimizer's class if it is element-wise."
            )


def _check_state(update: VariableUpdate, optimizer: Any) -> None:
    """Checks that an optimizer's state has its variables' shapes, and so is on their servers."""
    if not isinstance(update.variable, SharedVariable):
        return
    of_worker = [
        variable
        for variable in map(tensorflow_variable, state_of(optimizer))
        if variable.shape.rank and not isinstance(variable, (SlotVariable, RowVariable))
    ]
    if of_worker:
        raise ValueError(
            "An optimizer's state must have the shape of its variable, to be on the variable's "
            f"parameter server. Received: {type(optimizer).__name__}, which keeps "
            f"{of_worker[0].name!r} of shape {tuple(of_worker[0].shape)}. Use an optimizer such as "
            "Adam, or mode='geo', in which each worker has its own optimizer."
        )
