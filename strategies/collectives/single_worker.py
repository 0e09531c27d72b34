"""A scope for work that one worker does alone, such as saving a model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

_depth = 0


@contextlib.contextmanager
def single_worker_scope() -> Iterator[None]:
    """Runs the block without the other workers where possible.

    New variables, such as those that Keras creates when it saves a model, get this worker's initial
    values. Operations that need the other workers raise an error instead of waiting forever.

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
