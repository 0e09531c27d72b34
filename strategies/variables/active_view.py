"""The shard of a variable that is being updated."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Generic, TypeVar

_Shard = TypeVar("_Shard")


class ActiveView(Generic[_Shard]):
    """Active shard of each thread, which is set by the innermost `activate` block.

    >>> active = ActiveView()
    >>> with active.activate("rows 0-9"):
    ...     active.current
    'rows 0-9'
    >>> active.current is None
    True
    """

    def __init__(self) -> None:
        self._local = threading.local()

    @property
    def current(self) -> _Shard | None:
        """The active shard of this thread; None outside of all blocks."""
        return getattr(self._local, "shard", None)

    @contextlib.contextmanager
    def activate(self, shard: _Shard) -> Iterator[None]:
        """Makes a shard the active shard of this thread in the block."""
        before = self.current
        self._local.shard = shard
        try:
            yield
        finally:
            self._local.shard = before
