"""A scope for what one worker does by itself, such as saving a model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

_depth = 0


@contextlib.contextmanager
def single_worker_scope() -> Iterator[None]:
    """Runs the block without the other workers, as far as possible.

    New variables have its own initial values: Keras makes some where it saves a model. What needs
    the others raises, for it would not end.

    >>> with single_worker_scope():
    ...     in_single_worker_scope()
    True
    """
    global _depth
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1


def in_single_worker_scope() -> bool:
    """Returns whether a `single_worker_scope` is active."""
    return _depth > 0
