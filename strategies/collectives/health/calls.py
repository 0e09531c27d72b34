"""The call of Keras that the main thread is in, for threads that must not read its variables.

`frame.f_locals` of a frame that another thread is running reads variables while they change, and
may end the process with SIGSEGV (seen on Python 3.11). Threads that watch look at the code of
frames alone; what they say of a call was recorded by the thread that made it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from strategies._keras import running_call, running_method

# By method: the text of its latest call, and its model.
_latest: dict[str, tuple[str, Callable[[], Any]]] = {}


def record_call() -> str:
    """Records the call of Keras that this thread is in; returns it as text, "" for none.

    >>> record_call()
    ''
    """
    method, model, text = running_call()
    if method:
        _latest[method] = text, weakref.ref(model)
    return text


def call_at(frame: FrameType | None) -> tuple[str, Any]:
    """Returns the call of Keras that a thread is in, as text, and its model; "" and None for none.

    Until a call begins to iterate over its data, what is told is the call of that method before
    it, or if there was none, only the name.

    >>> call_at(None)
    ('', None)

    Args:
      frame: the thread's innermost frame.
    """
    method = running_method(frame) if frame is not None else None
    if method is None:
        return "", None
    text, model = _latest.get(method, (f"{method}()", lambda: None))
    return text, model()
