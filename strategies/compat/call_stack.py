"""The call stack of this thread, as Python objects."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

# The modules of this package inspect frames; their own frames are skipped.
_INSPECTING = frozenset(map(str, Path(__file__).parent.glob("*.py")))


def frames() -> Iterator[FrameType]:
    """Yields the frames of this thread, innermost first, except those that inspect frames.

    Reading the local variables of a frame that refers to itself makes a reference cycle. It would
    keep its callers alive, such as `fit` and its data, until the next garbage collection.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_filename not in _INSPECTING:
            yield frame
        frame = frame.f_back


def is_running(code: CodeType | None) -> bool:
    """Returns whether this thread is in a call of the function that has this code.

    >>> def ask():
    ...     return is_running(ask.__code__)
    >>> ask(), is_running(ask.__code__)
    (True, False)
    """
    return any(frame.f_code is code for frame in frames())


def locals_of(function: str) -> Mapping[str, Any]:
    """Returns the local variables of the innermost call of a function of this name; none if none.

    >>> def ask(answer):
    ...     return locals_of("ask")["answer"]
    >>> ask(42), locals_of("ask")
    (42, {})
    """
    names = (frame for frame in frames() if frame.f_code.co_name == function)
    return next((frame.f_locals for frame in names), {})


def innermost(is_wanted: Callable[[Any], bool]) -> Any:
    """Returns the innermost object whose method is running and that satisfies a predicate, or None.

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


def outermost(is_wanted: Callable[[Any], bool]) -> Any:
    """Returns the outermost object whose method is running and that satisfies a predicate, or None.

    >>> class Loop:
    ...     def run(self, inner=None):
    ...         return inner.run() if inner else outermost(lambda found: isinstance(found, Loop))
    >>> loop = Loop()
    >>> loop.run(Loop()) is loop
    True
    """
    found = None
    for frame in frames():
        if is_wanted(running := frame.f_locals.get("self")):
            found = running
    return found
