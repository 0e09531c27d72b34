"""Traits of optimizers: whether they can update parts of variables, or variables separately."""

from __future__ import annotations

from typing import Any, NamedTuple

from strategies.compat.keras import is_legacy, is_of_keras


class Traits(NamedTuple):
    """What an optimizer's update depends on.

    Attributes:
      is_elementwise: whether the update of an element depends on no other element of its variable,
        so that a part of a variable can be updated without the rest.
      is_per_variable: whether the update of a variable depends on no state that updates of other
        variables change, so that different tasks can update different variables.
    """

    is_elementwise: bool = True
    is_per_variable: bool = True


# Keras's optimizers by the names of their classes, which Keras 3 and tf_keras share.
_TRAITS = {
    "Adadelta": Traits(),
    "Adafactor": Traits(is_elementwise=False),  # keeps means of a variable's rows and columns
    "Adagrad": Traits(),
    "Adam": Traits(),
    "AdamW": Traits(),
    "Adamax": Traits(),
    "Ftrl": Traits(),
    "Lamb": Traits(is_elementwise=False),  # scales by the norm of a variable
    "Lion": Traits(),
    "Muon": Traits(is_elementwise=False),  # orthogonalizes the update of a matrix
    "Nadam": Traits(is_per_variable=False),  # all variables share one product of decays
    "RMSprop": Traits(),
    "SGD": Traits(),
}
ELEMENTWISE = [name for name, traits in _TRAITS.items() if traits.is_elementwise]
ON_SLICES = [name for name in ELEMENTWISE if _TRAITS[name].is_per_variable]
# Options with which an optimizer stores and updates whole variables in every step.
_WHOLE_STATE_OPTIONS = ("use_ema", "gradient_accumulation_steps")


def is_elementwise(optimizer: Any) -> bool:
    """Returns whether an optimizer updates each element of a variable independently.

    Keras's optimizers are recognized by name. A custom optimizer declares it by the class attribute
    `elementwise = True`.

    >>> import keras
    >>> is_elementwise(keras.optimizers.Adam()), is_elementwise(keras.optimizers.Lamb())
    (True, False)
    """
    cls = type(optimizer)
    declared = getattr(cls, "elementwise", None)
    if declared is not None:
        return bool(declared)
    # A user's subclass is not recognized, because it may override the update.
    return is_of_keras(cls) and cls.__name__ in ELEMENTWISE


def is_per_variable(optimizer: Any) -> bool:
    """Returns whether an optimizer updates each variable independently of the others.

    Optimizers of unknown classes are assumed to do so; a subclass has the traits of its base class.

    >>> import keras
    >>> is_per_variable(keras.optimizers.Adam()), is_per_variable(keras.optimizers.Nadam())
    (True, False)
    """
    names = [cls.__name__ for cls in type(optimizer).__mro__]
    return all(_TRAITS[name].is_per_variable for name in names if name in _TRAITS)


def update_without_xla(optimizer: Any) -> None:
    """Disables XLA compilation of an optimizer's updates, which tf_keras enables on GPUs.

    XLA compiles for a single device, and cannot compile updates of a part of a variable.
    """
    if getattr(optimizer, "jit_compile", False):
        optimizer.jit_compile = False


def check_trains_rows(optimizer: Any) -> None:
    """Checks that an optimizer can train only the touched rows of an embedding.

    Raises:
      ValueError: if it cannot; the message names the optimizer or the option.
    """
    name = type(optimizer).__name__
    if is_legacy(optimizer):
        raise ValueError(
            "An embedding cannot be trained by a legacy optimizer, which writes to a variable's "
            f"memory directly. Received: tf_keras.optimizers.legacy.{name}. Use "
            f"tf_keras.optimizers.{name}."
        )
    if not is_elementwise(optimizer):
        raise ValueError(
            "An embedding requires an element-wise optimizer, because a step sees only the rows "
            f"that it touched. Received: {name}, which uses whole variables or is unknown. Use "
            f"one of {', '.join(ELEMENTWISE)}; use different optimizers for the embedding and the "
            "other layers (keras.optimizers.MultiOptimizer, or the layer's optimizer=...); or set "
            "`elementwise = True` in your optimizer's class."
        )
    for option in _WHOLE_STATE_OPTIONS:
        if getattr(optimizer, option, None):
            raise ValueError(
                "The optimizer of an embedding cannot change rows that a step does not touch. "
                f"Received: {name} with {option}={getattr(optimizer, option)!r}, which changes all "
                f"rows in every step. Omit {option}."
            )
