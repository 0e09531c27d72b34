"""The calls that this thread is in, as Python objects."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

# Whoever looks at frames is not one of them.
_LOOKING = [str(Path(__file__).with_name(name)) for name in ("frames.py", "_keras.py")]


def frames() -> Iterator[FrameType]:
    """Yields the frames of this thread, the innermost first, but for those that look at them.

    One whose local variables are looked at while it holds itself would live on with all that
    called it, `fit` and its data, until the garbage collector comes.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_filename not in _LOOKING:
            yield frame
        frame = frame.f_back


def innermost(is_wanted: Callable[[Any], bool]) -> Any:
    """Returns the innermost object on the stack that satisfies a predicate; None without one.

    >>> class Loop:
    ...     def run(self):
    ...         return innermost(lambda found: isinstance(found, Loop))
    >>> loop = Loop()
    >>> loop.run() is loop
    True
    """
    for frame in frames():
        if is_wanted(found := frame.f_locals.get("self")):
            return found
    return None
