"""The workers of a strategy: their collectives, and a barrier."""

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
