"""The call of Keras that the main thread is in, for threads that must not look at its frames.

That a call is running is told by the names of its file and function, see stack.py; what its
arguments are was recorded by the thread that made it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from strategies._keras import methods, running_call
from strategies.collectives.health.stack import Entry

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


def call_in(stack: Sequence[Entry]) -> tuple[str, Any]:
    """Returns the call of Keras that a thread is in, as text, and its model; "" and None for none.

    Until a call begins to iterate over its data, what is told is the call of that method before
    it, or if there was none, only the name.

    >>> call_in([])
    ('', None)

    Args:
      stack: of the thread, see `stack_of`.
    """
    names = {(code.co_filename, code.co_name): name for code, name in methods().items()}
    called = (names.get((entry.filename, entry.function)) for entry in stack)
    method = next(filter(None, called), None)
    if method is None:
        return "", None
    text, model = _latest.get(method, (f"{method}()", lambda: None))
    return text, model()
