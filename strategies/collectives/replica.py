"""Collectives among all replicas, called by each replica of a process for itself.

Where a replica's function branches or loops (`tf.cond`, `tf.while_loop`), its replicas cannot be
merged into one function: each branch is a graph of its own. So each replica runs operations of
TensorFlow's, which meet inside the process; its first replica meets those of the other workers.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from strategies.collectives.base import AllToAllViaAllGather, Collectives
from strategies.collectives.tensorflow import TensorFlowCollectives


class ReplicaCollectives(AllToAllViaAllGather):
    """Collectives among all replicas of all workers, for one replica; see `Collectives`.

    Args:
      here: among the replicas of this process.
      workers: among the workers; the first replica of each calls them.
    """

    def __init__(self, here: Collectives, workers: Collectives):
        self._here = here
        self._workers = workers
        self.rank = workers.rank * here.size + here.rank
        self.size = workers.size * here.size

    @classmethod
    def of_all(cls, devices: Sequence[str], workers: Collectives) -> list[ReplicaCollectives]:
        """Returns the collectives of each replica of this process.

        Args:
          devices: the replicas'.
          workers: among the workers.
        """
        here = TensorFlowCollectives.inside(devices, workers.rank)
        return [cls(one, workers) for one in here]

    def apart(self) -> ReplicaCollectives:
        """Returns these: replicas read no datasets of their own."""
        return self

    def all_reduce(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the sums over all replicas; see `Collectives`."""
        sums = self._here.all_reduce(tensors)
        if self._workers.size == 1:
            return sums
        # To add zeros to the first replica's result changes no bit.
        first = self._here.rank == 0
        total = self._workers.all_reduce(sums) if first else [tf.zeros_like(s) for s in sums]
        return self._here.all_reduce(total)

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the replicas' tensors joined along axis 0, by rank; see `Collectives`."""
        joined = self._here.all_gather(tensor)
        if self._workers.size == 1:
            return joined
        first = self._here.rank == 0
        return self._here.all_gather(self._workers.all_gather(joined) if first else joined[:0])

    def broadcast(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the first replica's tensor; see `Collectives`."""
        if self._workers.size > 1 and self._here.rank == 0:
            tensor = self._workers.broadcast(tensor)
        return self._here.broadcast(tensor)
