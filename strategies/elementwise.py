"""Which optimizers treat each element by itself, so that a part of a variable can be updated."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

# Keras's and tf_keras's. The others look at a variable's norm, rows or columns.
ELEMENTWISE = (
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Ftrl",
    "Lion",
    "Nadam",
    "RMSprop",
    "SGD",
)


def is_elementwise(optimizer: Any) -> bool:
    """Returns whether an optimizer updates each element of a variable by itself.

    Keras's are known by name. Your own says so by an attribute, `elementwise = True`.

    >>> import keras
    >>> is_elementwise(keras.optimizers.Adam()), is_elementwise(keras.optimizers.Lamb())
    (True, False)
    """
    cls = type(optimizer)
    said = getattr(cls, "elementwise", None)
    if said is not None:
        return bool(said)
    of_keras = cls.__module__.split(".")[0] in ("keras", "tf_keras")
    return of_keras and cls.__name__ in ELEMENTWISE


def optimizer_of(update: Callable) -> Any | None:
    """Returns the optimizer whose step an update function is, None if it is another function.

    Keras's optimizers pass a function of their own to `extended.update`, which knows them.
    """
    function = inspect.unwrap(tf.__internal__.decorator.unwrap(update)[1])
    if not inspect.isfunction(function):
        return None
    found = inspect.getclosurevars(function).nonlocals.get("self")
    return found if hasattr(found, "update_step") else None
