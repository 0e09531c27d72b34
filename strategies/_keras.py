"""What Keras does right now, as the names of the functions that are on the stack tell.

Checked on Keras 3.15.1 and tf_keras 2.21.0.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


def is_updating() -> bool:
    """Returns whether an optimizer's `update_step` runs.

    >>> is_updating()
    False
    """
    return any(frame.f_code.co_name == "update_step" for frame in _stack())


def is_writing_h5() -> bool:
    """Returns whether the old HDF5 format is written, of which both versions have a function.

    `.weights.h5` files are of another format, whose layers write what they have.
    """
    name = "save_subset_weights_to_hdf5_group"
    return any(frame.f_code.co_name == name for frame in _stack())


def innermost(is_wanted: Callable[[Any], bool]) -> Any:
    """Returns the object whose method called last, of those that are wanted; None without one."""
    for frame in _stack():
        if is_wanted(found := frame.f_locals.get("self")):
            return found
    return None


def _stack() -> Iterator[FrameType]:
    frame = inspect.currentframe()
    while frame is not None:
        yield frame
        frame = frame.f_back
