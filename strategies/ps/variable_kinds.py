"""The kind of a new variable, derived from its creation arguments."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.compat.keras import constraint_of, is_iterations
from strategies.compat.tensorflow import CheckpointInitialValue
from strategies.utils.devices import HOST
from strategies.variables.unsynchronized_state import is_unsynchronized_state


def initial_value(kwargs: dict[str, Any]) -> np.ndarray:
    """Returns the initial value that this worker's script gives a new variable."""
    with tf.init_scope(), tf.device(HOST):
        value = kwargs["initial_value"]
        value = value() if callable(value) else value
        if isinstance(value, CheckpointInitialValue):
            value = value.wrapped_value
        value = tf.convert_to_tensor(value, dtype=kwargs.get("dtype"))
        kwargs["initial_value"] = value
        return value.numpy() if value.dtype != tf.string else np.array(value.numpy(), object)


def normalize_state_arguments(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns the creation arguments of tf_keras's moving statistics in the form of Keras 3.

    In tf_keras each replica keeps its own value, and a read returns their mean. The arguments of
    all other variables are returned unchanged.
    """
    is_on_read = kwargs.get("synchronization") == tf.VariableSynchronization.ON_READ
    if not is_on_read or kwargs.get("aggregation") != tf.VariableAggregation.MEAN:
        return kwargs
    state = {
        **kwargs,
        "synchronization": tf.VariableSynchronization.AUTO,
        "aggregation": tf.VariableAggregation.NONE,
        "trainable": False,
    }
    return state if is_unsynchronized_state(state) and initial_value(state).shape else kwargs


class VariableKind(enum.Enum):
    """How a variable is shared.

    Attributes:
      WEIGHT: the servers update it, and each worker has a copy.
      COUNTER: each server has a copy, to which the increments of all workers are added.
      STATE: each worker changes its copy, and the servers add up the changes.
      LOCAL: each worker has its own variable, and the servers have none.
    """

    WEIGHT = enum.auto()
    COUNTER = enum.auto()
    STATE = enum.auto()
    LOCAL = enum.auto()


def variable_kind(kwargs: dict[str, Any], has_local_optimizer: bool, in_step: bool) -> VariableKind:
    """Returns the kind of a new variable.

    Args:
      kwargs: the variable's creation arguments.
      has_local_optimizer: whether each worker has its own optimizer; see `Mode`.
      in_step: whether all workers take the same steps together.
    """
    if "colocate_with" in kwargs:
        # A slot variable of a worker's own optimizer, or of a LOCAL variable.
        return VariableKind.LOCAL
    if is_iterations(kwargs):
        # A local optimizer counts the worker's own steps.
        is_counter = not has_local_optimizer and _is_scalar_integer(initial_value(kwargs))
        return VariableKind.COUNTER if is_counter else VariableKind.LOCAL
    if kwargs.get("aggregation") == tf.VariableAggregation.ONLY_FIRST_REPLICA:
        return VariableKind.LOCAL
    if kwargs.get("trainable") is not False:
        is_numeric = initial_value(kwargs).dtype.kind not in "OSU"
        return VariableKind.WEIGHT if is_numeric else VariableKind.LOCAL
    # Workers in step merge their states themselves, as they do without servers.
    if in_step or not is_unsynchronized_state(kwargs):
        return VariableKind.LOCAL
    # A scalar is a setting, such as tf_keras's learning rate.
    return VariableKind.STATE if initial_value(kwargs).shape else VariableKind.LOCAL


def _is_scalar_integer(value: np.ndarray) -> bool:
    return value.shape == () and value.dtype.kind in "iu"


def is_assignment(fn: Callable[..., Any]) -> bool:
    """Returns whether an update assigns a value to a variable instead of adding to it."""
    return "assign" in getattr(fn, "__code__", is_assignment.__code__).co_names


def check_aggregation(variable: Any) -> None:
    """Checks that a variable has an aggregation for the values of several replicas.

    Raises:
      ValueError: if its aggregation is NONE.
    """
    if variable.aggregation == tf.VariableAggregation.NONE:
        raise ValueError(
            "A variable that several replicas of a worker assign must have an aggregation. "
            f"Received: a value from each replica for {variable.remote.path!r}. Create the "
            "variable with an aggregation, such as tf.VariableAggregation.SUM."
        )


def check_is_unconstrained(variable: Any, optimizer: Any) -> None:
    """Checks that an optimizer applies no constraint to a variable.

    Raises:
      ValueError: if it applies one.
    """
    constraint = None if optimizer is None else constraint_of(optimizer, variable)
    if constraint is None:
        return
    name = getattr(constraint, "__name__", type(constraint).__name__)
    raise ValueError(
        "A weight on parameter servers can have a constraint in mode='geo', and in mode='sync' "
        "with one replica per worker and no compression. Otherwise the constraint would not hold. "
        f"Received: {type(optimizer).__name__}, which applies {name} to {variable.remote.path!r}. "
        "Omit the constraint, or use one of these modes."
    )
