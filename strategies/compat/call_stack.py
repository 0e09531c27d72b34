"""The call stack of this thread, as Python objects."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

# The modules of this package inspect frames; their own frames are skipped.
_INSPECTING = frozenset(map(str, Path(__file__).parent.glob("*.py")))


def frames() -> Iterator[FrameType]:
    """Yields the frames of this thread, innermost first, except those of this package.

    They are skipped because reading the local variables of a frame that refers to itself creates a
    reference cycle, which would keep its callers, such as `fit` and its data, alive until the next
    garbage collection.
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
    """Returns the local variables of the innermost call of a function of this name, {} if none.

    >>> def ask(answer):
    ...     return locals_of("ask")["answer"]
    >>> ask(42), locals_of("ask")
    (42, {})
    """
    calls = (frame for frame in frames() if frame.f_code.co_name == function)
    return next((frame.f_locals for frame in calls), {})


def innermost_self(is_wanted: Callable[[Any], bool]) -> Any:
    """Returns the innermost object whose method is running and that satisfies a predicate, or None.

    >>> class Loop:
    ...     def run(self):
    ...         return innermost_self(lambda owner: isinstance(owner, Loop))
    >>> loop = Loop()
    >>> loop.run() is loop
    True
    """
    for frame in frames():
        if is_wanted(owner := frame.f_locals.get("self")):
            return owner
    return None


def visible_objects(libraries: Collection[str]) -> Iterator[Any]:
    """Yields the objects that the running functions of this thread refer to, innermost first.

    These are their local and global variables and the attributes of `self`; for functions of
    libraries, `self` only.

    >>> class Loop:
    ...     def run(self, step):
    ...         return any(each is step for each in visible_objects(()))
    >>> Loop().run(object())
    True

    Args:
      libraries: names of top-level packages.
    """
    for frame in frames():
        owner = frame.f_locals.get("self")
        yield owner
        if str(frame.f_globals.get("__name__")).partition(".")[0] in libraries:
            continue
        yield from frame.f_locals.values()
        yield from getattr(owner, "__dict__", {}).values()
        names = (name for name in frame.f_code.co_names if name in frame.f_globals)
        yield from map(frame.f_globals.__getitem__, names)
