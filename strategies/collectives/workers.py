"""The workers of a strategy: their collectives, their ranks and a barrier."""

from __future__ import annotations

import tensorflow as tf

from strategies.collectives.base import Collectives, LocalCollectives
from strategies.compat.tensorflow import has_several_workers
from strategies.diagnostics.consistency import check_same_call


def barrier(strategy: tf.distribute.Strategy) -> None:
    """Waits until all workers have called this function.

    Where the strategy has parameter servers, it also refreshes this worker's variables from them.

    >>> barrier(tf.distribute.get_strategy())

    Args:
      strategy: the strategy of the workers.

    Raises:
      ValueError: if it is another package's strategy with several workers, or another worker makes
        a different call.
    """
    drain(strategy)
    check_same_call(collectives_of(strategy), "barrier")
    refresh(strategy)


def worker_rank(strategy: tf.distribute.Strategy) -> int:
    """Returns the rank of this worker among the workers of a strategy, from 0.

    A chief has rank 0. With a single worker, and outside any strategy, the rank is 0.

    >>> worker_rank(tf.distribute.get_strategy())
    0

    Args:
      strategy: the strategy of the workers.

    Raises:
      ValueError: if it is another package's strategy with several workers.
    """
    return collectives_of(strategy).rank


def drain(strategy: tf.distribute.Strategy) -> None:
    """Waits until the parameter servers, if there are any, have all of this worker's updates.

    Call it before a barrier after which workers read or write variables: updates that are still
    queued on one worker would be missing in the values that the others read, or would be applied to
    the values that they wrote.
    """
    if hasattr(strategy.extended, "drain"):
        strategy.extended.drain()


def refresh(strategy: tf.distribute.Strategy) -> None:
    """Updates this worker's variables from the parameter servers, if the strategy has any."""
    if hasattr(strategy.extended, "refresh"):
        strategy.extended.refresh()


def collectives_of(strategy: tf.distribute.Strategy) -> Collectives:
    """Returns the collectives among all workers of a strategy.

    Raises:
      ValueError: if it is another package's strategy with several workers.
    """
    extended = strategy.extended
    if hasattr(extended, "workers"):
        return extended.workers
    if has_several_workers(strategy):
        raise ValueError(
            "The strategy must be one of this package. Received: "
            f"{type(strategy).__module__}.{type(strategy).__name__} with several workers. Use "
            "strategies.MultiWorkerMirroredStrategy."
        )
    return LocalCollectives()


def collectives_in_step(strategy: tf.distribute.Strategy) -> Collectives:
    """Returns the collectives among the workers that take all steps together.

    Where workers do not wait for one another, as with parameter servers outside "sync", they are
    those of a single worker.

    >>> collectives_in_step(tf.distribute.get_strategy()).size
    1
    """
    return getattr(strategy.extended, "collectives", LocalCollectives())


def are_in_step(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether all workers take all steps together.

    >>> are_in_step(tf.distribute.get_strategy())
    True
    """
    return getattr(strategy.extended, "in_step", True)


def is_joining(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether this worker joins a job that runs, and does not meet the others yet.

    >>> is_joining(tf.distribute.get_strategy())
    False
    """
    return getattr(strategy.extended, "is_joining", False)
