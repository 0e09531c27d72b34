"""The workers of a strategy: who is first, and the wait for all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from strategies.collectives import Collectives, LocalCollectives
from strategies.extended import ReplicatedExtended

_alone = 0


@contextlib.contextmanager
def acting_alone() -> Iterator[None]:
    """Says that no other worker does what is done in the block."""
    global _alone
    _alone += 1
    try:
        yield
    finally:
        _alone -= 1


def is_alone() -> bool:
    """Returns whether this worker is known to do something that the others do not."""
    return _alone > 0


def barrier(strategy: tf.distribute.Strategy) -> None:
    """Returns when all workers have called it.

    >>> barrier(tf.distribute.get_strategy())

    Args:
      strategy: of the workers.
    """
    collectives_of(strategy).all_gather(tf.constant([0]))


def collectives_of(strategy: tf.distribute.Strategy) -> Collectives:
    """Returns what moves between the workers of a strategy: of this package's, or of one process.

    Raises:
      ValueError: if it is another one with several workers.
    """
    extended = strategy.extended
    if isinstance(extended, ReplicatedExtended):
        return extended._collectives
    if extended._in_multi_worker_mode():
        raise ValueError(
            "Workers are known to the strategies of this package. Received: "
            f"{type(strategy).__module__}.{type(strategy).__name__} with several workers. "
            "Use strategies.MultiWorkerMirroredStrategy."
        )
    return LocalCollectives()
