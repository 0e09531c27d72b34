"""What this package knows of the insides of Keras.

Keras tells a strategy neither which of a model's methods is running nor which layer a variable is
of. Both are seen on Python's stack, where its methods and the objects they belong to are. Checked
on Keras 3.15.1 and tf_keras 2.21.0.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
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
    owner = innermost(lambda found: isinstance(found, made)) if made else None
    if owner is not None:
        return owner.path if owner.name == name else name
    with tf.init_scope(), tf.name_scope(name) as path:
        return path.rstrip("/")


def is_updating() -> bool:
    """Returns whether an optimizer's `update_step` runs.

    >>> is_updating()
    False
    """
    return any(frame.f_code.co_name == "update_step" for frame in _frames())


def is_writing_h5() -> bool:
    """Returns whether the old HDF5 format is written, of which both versions have a function.

    `.weights.h5` files are of another format, whose layers write what they have.
    """
    name = "save_subset_weights_to_hdf5_group"
    return any(frame.f_code.co_name == name for frame in _frames())


def innermost(is_wanted: Callable[[Any], bool]) -> Any:
    """Returns the object whose method called last, of those that are wanted; None without one."""
    for frame in _frames():
        if is_wanted(found := frame.f_locals.get("self")):
            return found
    return None


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
