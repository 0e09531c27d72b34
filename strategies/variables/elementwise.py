"""Element-wise optimizers, which can update a part of a variable independently of the rest."""

from __future__ import annotations

from typing import Any

from strategies.compat.keras import is_legacy, is_of_keras

# The other optimizers use a variable's norm, rows or columns.
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
# Options with which an optimizer stores and updates whole variables in every step.
_WHOLE_STATE_OPTIONS = ("use_ema", "gradient_accumulation_steps")


def is_elementwise(optimizer: Any) -> bool:
    """Returns whether an optimizer updates each element of a variable independently.

    Keras's optimizers are known by name. A custom optimizer declares it by the class attribute
    `elementwise = True`.

    >>> import keras
    >>> is_elementwise(keras.optimizers.Adam()), is_elementwise(keras.optimizers.Lamb())
    (True, False)
    """
    cls = type(optimizer)
    said = getattr(cls, "elementwise", None)
    if said is not None:
        return bool(said)
    return is_of_keras(cls) and cls.__name__ in ELEMENTWISE


def update_without_xla(optimizer: Any) -> None:
    """Disables XLA compilation of an optimizer's updates, which tf_keras enables on GPUs.

    XLA compiles for one device, and cannot compile updates of only a part of a variable.
    """
    if getattr(optimizer, "jit_compile", False):
        optimizer.jit_compile = False


def check_trains_rows(optimizer: Any) -> None:
    """Checks that an optimizer can train only the touched rows of an embedding.

    Raises:
      ValueError: if it cannot; the message names the optimizer or its option.
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
            f"that it touched. Received: {name}, which uses whole variables, or is unknown. Use "
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
