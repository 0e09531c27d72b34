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


def is_optimizer(value: Any) -> bool:
    """Returns whether a value is an optimizer: Keras's, tf_keras's or its legacy ones.

    >>> import keras
    >>> is_optimizer(keras.optimizers.SGD()), is_optimizer(keras.layers.Dense(1))
    (True, False)
    """
    return hasattr(type(value), "update_step") or is_legacy(value)


def is_legacy(optimizer: Any) -> bool:
    """Returns whether an optimizer is one of `tf_keras.optimizers.legacy`, or made as these are."""
    return hasattr(type(optimizer), "_resource_apply_dense")


def check_trains_rows(optimizer: Any) -> None:
    """Checks that an optimizer is right on the touched rows of an embedding alone.

    Raises:
      ValueError: if it is not; it names the optimizer or its option.
    """
    name = type(optimizer).__name__
    if is_legacy(optimizer):
        raise ValueError(
            "An embedding's rows are read and written by an optimizer's update_step. Received: "
            f"tf_keras.optimizers.legacy.{name}, which writes to a variable's memory. Take "
            f"tf_keras.optimizers.{name}."
        )
    if not is_elementwise(optimizer):
        raise ValueError(
            "An embedding is trained by optimizers that change each number by itself, for a step "
            f"knows the rows that it touched alone. Received: {name}, which looks at whole "
            f"variables, or is not known. Choose one of {', '.join(ELEMENTWISE)}; train the other "
            "layers by another one (keras.optimizers.MultiOptimizer, or the layer's "
            "optimizer=...); or say `elementwise = True` in the class of your own."
        )
    for option in ("use_ema", "gradient_accumulation_steps"):
        if getattr(optimizer, option, None):
            raise ValueError(
                "An embedding's rows are updated when they are touched, by optimizers whose state "
                f"is of these rows. Received: {name} with {option}="
                f"{getattr(optimizer, option)!r}, which is of all rows in every step. Leave "
                f"{option} out."
            )


def optimizer_of(update: Callable) -> Any | None:
    """Returns the optimizer whose step an update function is, None if it is another function.

    Keras's optimizers pass a function of their own to `extended.update`, which knows them.
    """
    function = inspect.unwrap(tf.__internal__.decorator.unwrap(update)[1])
    if not inspect.isfunction(function):
        return None
    found = inspect.getclosurevars(function).nonlocals.get("self")
    return found if hasattr(found, "update_step") else None
