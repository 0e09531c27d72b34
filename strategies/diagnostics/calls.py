"""The Keras call that the main thread is in, for threads that must not hold its frames.

The file and function names on the stack (see stack.py) show that a call is running. Its arguments
were recorded by the thread that made the call.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from strategies.compat.keras import methods, running_call
from strategies.diagnostics.stack import Entry

# For each method, the text of its latest call and a reference to the model.
_latest: dict[str, tuple[str, Callable[[], Any]]] = {}


def record_call() -> str:
    """Records the Keras call that this thread is in; returns its description, "" if none.

    >>> record_call()
    ''
    """
    method, model, text = running_call()
    if method:
        _latest[method] = text, weakref.ref(model)
    return text


def call_in(stack: Sequence[Entry]) -> tuple[str, Any]:
    """Returns the Keras call that a thread is in, as text, and its model; ("", None) if none.

    Until a call begins to iterate over its data, the text is that of the method's previous call, or
    only the method's name if it was not called before.

    >>> call_in([])
    ('', None)

    Args:
      stack: the thread's stack, from `stack_of`.
    """
    names = {(code.co_filename, code.co_name): name for code, name in methods().items()}
    called = (names.get((entry.filename, entry.function)) for entry in stack)
    method = next(filter(None, called), None)
    if method is None:
        return "", None
    text, model = _latest.get(method, (f"{method}()", lambda: None))
    return text, model()
