"""Random seeds: each replica draws its own numbers from a seed that all replicas share."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from strategies.compat.tensorflow import ResourceVariable, global_seed

# A large prime, so that replicas' seeds are far apart, and far from the seeds that users choose.
_APART = 1000003
_ARGUMENTS = (
    "initial_value",
    "trainable",
    "caching_device",
    "name",
    "dtype",
    "constraint",
    "synchronization",
    "aggregation",
    "shape",
)


class SeedState(ResourceVariable):
    """One replica's copy of the state of Keras 3's `SeedGenerator`.

    All copies are equal, so a checkpoint has one state for any number of replicas. While a
    replica's function runs, reading adds the replica's offset to the seed, and writing subtracts
    it. Otherwise Dropout would drop the same units on all replicas.

    Args:
      replica: the number of the replica among all replicas.
      **kwargs: the arguments of a variable creator.
    """

    def __init__(self, *, replica: int, **kwargs: Any):
        self._offset = replica * _APART
        super().__init__(**{name: kwargs[name] for name in _ARGUMENTS if name in kwargs})

    def _read_variable_op(self, no_copy: bool = False) -> tf.Tensor:
        value = super()._read_variable_op(no_copy)
        return value + self._own_seed() if _in_replica() else value

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Assigns a state, without the replica's offset."""
        if _in_replica():
            value = tf.convert_to_tensor(value, self.dtype) - self._own_seed()
        return super().assign(value, *args, **kwargs)

    def _own_seed(self) -> tf.Tensor:
        return tf.constant([self._offset, 0], self.dtype)


def seed_state_creator(first: int) -> Callable[..., SeedState]:
    """Returns a variable creator that creates one worker's copies, in the order of its replicas.

    Args:
      first: the number of the worker's first replica.
    """
    created = 0

    def create(**kwargs: Any) -> SeedState:
        nonlocal created
        created += 1
        return SeedState(replica=first + created - 1, **kwargs)

    return create


def share_seed(shared: Callable[[int], int]) -> None:
    """Sets the first worker's global seed on all workers, or a random one if it has none.

    All workers shuffle the same data and shard the same batches, so they need the same seed. A
    seed that depends on the rank is replaced: replicas draw different numbers in any case.

    Args:
      shared: takes a number; returns, on all workers, the number that the first worker passed.
    """
    own = global_seed()
    seed = shared(secrets.randbelow(2**31) if own is None else int(own))
    if own == seed:
        return
    tf.random.set_seed(seed)
    if own is None:
        logging.debug("All workers use the random seed %d.", seed)
    else:
        logging.warning(
            "All workers must have the same random seed, to shuffle the data alike. Received: seed "
            "%d here, and %d on the first worker, which replaces it. Do not add the rank to the "
            "seed: each replica draws its own random numbers anyway, for Dropout for example.",
            own, seed,
        )  # fmt: skip


@contextlib.contextmanager
def worker_seed_scope(rank: int) -> Iterator[None]:
    """Gives random operations that the block creates in a graph a seed that depends on the worker.

    These are the operations of tf_keras's layers, `tf.random.uniform` and the like. The global seed
    is the same on all workers, because the order of the data must be.
    """
    graph, common = tf.compat.v1.get_default_graph(), global_seed()
    if rank == 0 or common is None or tf.executing_eagerly():
        yield
        return
    before = graph.seed
    graph.seed = (common + rank * _APART) % 2**31
    try:
        yield
    finally:
        graph.seed = before


def _in_replica() -> bool:
    return tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()
