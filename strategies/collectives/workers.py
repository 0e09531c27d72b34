"""The workers of a strategy: their collectives, their numbers, and a barrier."""

from __future__ import annotations

import tensorflow as tf

from strategies._tensorflow import has_several_workers
from strategies.collectives.base import Collectives, LocalCollectives
from strategies.collectives.health.agreement import agree


def barrier(strategy: tf.distribute.Strategy) -> None:
    """Waits until all workers have called it.

    >>> barrier(tf.distribute.get_strategy())

    Args:
      strategy: of the workers.
    """
    agree(collectives_of(strategy), "barrier")
    refresh(strategy)


def worker_rank(strategy: tf.distribute.Strategy) -> int:
    """Returns the number of this worker among those of a strategy, from 0.

    A chief is the first. On one worker, and outside of any strategy, it is 0.

    >>> worker_rank(tf.distribute.get_strategy())
    0

    Args:
      strategy: of the workers.

    Raises:
      ValueError: if it is another package's, with several workers.
    """
    return collectives_of(strategy).rank


def refresh(strategy: tf.distribute.Strategy) -> None:
    """Updates this worker's variables from the parameter servers, where there are any."""
    if hasattr(strategy.extended, "refresh"):
        strategy.extended.refresh()


def collectives_of(strategy: tf.distribute.Strategy) -> Collectives:
    """Returns the collectives among the workers of a strategy.

    Raises:
      ValueError: if it is another one with several workers.
    """
    extended = strategy.extended
    if hasattr(extended, "between_workers"):
        return extended.between_workers()
    if has_several_workers(strategy):
        raise ValueError(
            "Workers are known to the strategies of this package. Received: "
            f"{type(strategy).__module__}.{type(strategy).__name__} with several workers. "
            "Use strategies.MultiWorkerMirroredStrategy."
        )
    return LocalCollectives()


def collectives_in_step(strategy: tf.distribute.Strategy) -> Collectives:
    """Returns the collectives among workers that make all steps together.

    Where workers wait for nobody, as with parameter servers outside of "sync", each is alone.

    >>> collectives_in_step(tf.distribute.get_strategy()).size
    1
    """
    return getattr(strategy.extended, "collectives", LocalCollectives())
