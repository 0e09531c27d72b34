"""The kind of a new variable, derived from its creation arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.compat.keras import constraint_of, is_iterations
from strategies.compat.tensorflow import CheckpointInitialValue
from strategies.variables.unsynchronized_state import is_unsynchronized_state

_CPU = "/device:CPU:0"


def initial_value(kwargs: dict[str, Any]) -> np.ndarray:
    """Returns the initial value that this worker's script gives a new variable."""
    with tf.init_scope(), tf.device(_CPU):
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
    is_kept_apart = kwargs.get("synchronization") == tf.VariableSynchronization.ON_READ
    if not is_kept_apart or kwargs.get("aggregation") != tf.VariableAggregation.MEAN:
        return kwargs
    state = {
        **kwargs,
        "synchronization": tf.VariableSynchronization.AUTO,
        "aggregation": tf.VariableAggregation.NONE,
        "trainable": False,
    }
    return state if is_unsynchronized_state(state) and initial_value(state).shape else kwargs


def variable_kind(kwargs: dict[str, Any], is_geo: bool, in_step: bool) -> str:
    """Returns the kind of a new variable: "weight", "counter", "state" or "local".

    Args:
      kwargs: the variable's creation arguments.
      is_geo: whether each worker has its own optimizer.
      in_step: whether all workers take the same steps together.
    """
    if "colocate_with" in kwargs:
        return "local"
    if is_iterations(kwargs):
        is_counter = not is_geo and _is_whole_number(initial_value(kwargs))
        return "counter" if is_counter else "local"
    if kwargs.get("aggregation") == tf.VariableAggregation.ONLY_FIRST_REPLICA:
        return "local"
    if kwargs.get("trainable") is not False:
        return "weight" if initial_value(kwargs).dtype.kind not in "OSU" else "local"
    if in_step or not is_unsynchronized_state(kwargs):
        return "local"
    # A scalar is a setting, such as tf_keras's learning rate.
    return "state" if initial_value(kwargs).shape else "local"


def _is_whole_number(value: np.ndarray) -> bool:
    """Returns whether a value is a scalar integer."""
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
      ValueError: if it does.
    """
    constraint = None if optimizer is None else constraint_of(optimizer, variable)
    if constraint is None:
        return
    name = getattr(constraint, "__name__", type(constraint).__name__)
    raise ValueError(
        "A weight on parameter servers can have a constraint in mode='geo', and in mode='sync' "
        "with one replica per worker and no compression. Otherwise the constraint would not hold. "
        f"Received: {type(optimizer).__name__}, which applies {name} to {variable.remote.path!r}. "
        "Leave the constraint out, or use one of these modes."
    )
