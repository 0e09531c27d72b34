"""Recognizes the state of layers by the creation arguments of a variable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf


def is_unsynchronized_state(kwargs: Mapping[str, Any]) -> bool:
    """Returns whether a variable is state of a layer that would otherwise differ between workers.

    Slot variables are not: they are colocated with a variable and updated from reduced gradients.
    """
    return (
        kwargs.get("aggregation") in (None, tf.VariableAggregation.NONE)
        and kwargs.get("synchronization")
        in (None, tf.VariableSynchronization.AUTO, tf.VariableSynchronization.ON_WRITE)
        and kwargs.get("trainable") is False
        and "colocate_with" not in kwargs
        and _initial_dtype(kwargs).is_floating
    )


def _initial_dtype(kwargs: Mapping[str, Any]) -> tf.DType:
    if kwargs.get("dtype") is not None:
        return tf.as_dtype(kwargs["dtype"])
    value = kwargs["initial_value"]
    # The dtype of a function's result is not known yet; as an integer, it is not averaged.
    return tf.int64 if callable(value) else tf.convert_to_tensor(value).dtype
