"""The part of a variable that is being updated.

[Note: an active view]
Stock optimizers are written for whole variables: `update_step` reads a variable's value and shape,
computes, and assigns. Without any change, they can also update a part, if the variable and its slot
variables act as that part during the update. Two kinds of variables do this:

* `PartitionedVariable` and `PartView` (partitioned.py): one of several even parts, each of which is
  on another replica or server. It is in view in a `with` block around the update, in this thread
  only, because replicas update their parts in separate threads.
* `RowVariable` (row_variable.py): the rows of an embedding that a step has touched. They are put in
  view in the backward pass and stay there, because no code of this package runs around the update.

All code that reads a variable while a part is in view gets the part. So a block must not stay open
during a call that may read the variable for another purpose, such as saving.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Generic, TypeVar

_Shard = TypeVar("_Shard")


class ActiveView(Generic[_Shard]):
    """The active shard of each thread, set by `activate` blocks; see [Note: an active view].

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
        """Makes a shard the active shard of this thread while the block runs."""
        before = self.current
        self._local.shard = shard
        try:
            yield
        finally:
            self._local.shard = before
