"""What one worker does by itself, while the others do something else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

_depth = 0


@contextlib.contextmanager
def single_worker_scope() -> Iterator[None]:
    """Lets this worker do without the others in the block, as far as that can be.

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
    """Returns whether the other workers take no part in what this one does."""
    return _depth > 0
