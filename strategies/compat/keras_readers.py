"""Who reads a variable: the part of `_keras.py` that looks for the reader on Python's stack.

Checked with Keras 3.15.1 and tf_keras 2.21.0.
"""

from __future__ import annotations

from strategies.compat.call_stack import frames
from strategies.compat.keras import is_of_keras, is_optimizer

# The methods of tf_keras's optimizers that call a loss function of the user's.
_CALL_LOSS = ("compute_gradients", "minimize")


def is_read_by_optimizer() -> bool:
    """Returns whether an optimizer reads or writes its variables, in an update or around one.

    Weight decay, for example, is outside of `update_step`.

    >>> is_read_by_optimizer()
    False
    """
    for frame in frames():
        # A function in a method has the optimizer in its closure.
        if is_optimizer(frame.f_locals.get("self")):
            return frame.f_code.co_name not in _CALL_LOSS
    return False


def is_read_by_get_weights() -> bool:
    """Returns whether `get_weights` of a layer of Keras 3 or tf_keras reads a variable.

    >>> is_read_by_get_weights()
    False
    """
    for frame in frames():
        owner = frame.f_locals.get("self")
        if frame.f_code.co_name == "get_weights" and hasattr(type(owner), "get_weights"):
            return any(is_of_keras(cls) for cls in type(owner).__mro__)
    return False
