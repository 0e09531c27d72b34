"""What is known of Keras's insides: who calls what. Checked on Keras 3.15.1 and tf_keras 2.21.0.

Keras tells a strategy neither which of a model's methods is running nor which layer a variable is
of. Both are seen on Python's stack, where the public methods and the public class are.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

import tensorflow as tf

_METHODS = ("fit", "evaluate", "predict")


def running_method() -> str | None:
    """Returns the name of the innermost of a model's methods that called this, None for none.

    It is "fit", "evaluate" or "predict", of Keras 3's or tf_keras's `Model`; validation in `fit`
    is "evaluate".

    >>> running_method() is None
    True
    """
    names = {code: name for name in _METHODS for code in _codes(name)}
    return next((names[frame.f_code] for frame in _frames() if frame.f_code in names), None)


def path_of(name: str) -> str:
    """Returns the path of the variable that is being made: its layers' names and its own.

    Of Keras 3 that is `keras.Variable.path`. For anything else the names are those of the
    `tf.name_scope`s around it, which tf_keras opens for each layer.

    >>> with tf.name_scope("dense"):
    ...     path_of("kernel")
    'dense/kernel'

    Args:
      name: the variable's own.
    """
    made = _variable_class()
    for frame in _frames() if made else ():
        owner = frame.f_locals.get("self")
        if isinstance(owner, made):
            return owner.path if owner.name == name else name
    with tf.init_scope(), tf.name_scope(name) as path:
        return path.rstrip("/")


def _frames() -> Iterator[FrameType]:
    """Yields the frames of this thread, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _codes(method: str) -> list[CodeType]:
    # A script for one of the two Keras does not bring the other.
    models = [getattr(sys.modules.get(name), "Model", None) for name in ("keras", "tf_keras")]
    return [inspect.unwrap(getattr(model, method)).__code__ for model in models if model]


def _variable_class() -> Any:
    return getattr(sys.modules.get("keras"), "Variable", None)
