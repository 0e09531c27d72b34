"""The workers of a strategy: who is first, and the wait for all of them."""

from __future__ import annotations

import tensorflow as tf

from strategies.collectives import Collectives, LocalCollectives
from strategies.collectives.agreement import agree
from strategies.extended import ReplicatedExtended
from strategies.server.extended import ServerExtended


def barrier(strategy: tf.distribute.Strategy) -> None:
    """Returns when all workers have called it.

    >>> barrier(tf.distribute.get_strategy())

    Args:
      strategy: of the workers.
    """
    agree(collectives_of(strategy), "barrier")
    take_up(strategy)


def take_up(strategy: tf.distribute.Strategy) -> None:
    """Gives a worker the parameter servers' present values, where there are any."""
    if isinstance(strategy.extended, ServerExtended):
        strategy.extended.take_up_all()


def collectives_of(strategy: tf.distribute.Strategy) -> Collectives:
    """Returns what moves between the workers of a strategy: of this package's, or of one process.

    Raises:
      ValueError: if it is another one with several workers.
    """
    extended = strategy.extended
    if isinstance(extended, ServerExtended):
        extended.exchange.drain()
        return extended.workers
    if isinstance(extended, ReplicatedExtended):
        return extended._collectives
    if extended._in_multi_worker_mode():
        raise ValueError(
            "Workers are known to the strategies of this package. Received: "
            f"{type(strategy).__module__}.{type(strategy).__name__} with several workers. "
            "Use strategies.MultiWorkerMirroredStrategy."
        )
    return LocalCollectives()
