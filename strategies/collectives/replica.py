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
      local: among the replicas of this process.
      workers: among the workers; the first replica of each calls them.
    """

    def __init__(self, local: Collectives, workers: Collectives):
        self._local = local
        self._workers = workers
        self.rank = workers.rank * local.size + local.rank
        self.size = workers.size * local.size

    @classmethod
    def for_all_replicas(
        cls, devices: Sequence[str], workers: Collectives
    ) -> list[ReplicaCollectives]:
        """Returns the collectives of each replica of this process.

        Args:
          devices: the replicas'.
          workers: among the workers.
        """
        local = TensorFlowCollectives.within_process(devices, workers.rank)
        return [cls(one, workers) for one in local]

    def new_stream(self) -> ReplicaCollectives:
        """Returns itself: replicas do not read datasets of their own."""
        return self

    def all_reduce(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the sums over all replicas; see `Collectives`."""
        sums = self._local.all_reduce(tensors)
        if self._workers.size == 1:
            return sums
        # To add zeros to the first replica's result changes no bit.
        first = self._local.rank == 0
        total = self._workers.all_reduce(sums) if first else [tf.zeros_like(s) for s in sums]
        return self._local.all_reduce(total)

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the replicas' tensors joined along axis 0, by rank; see `Collectives`."""
        joined = self._local.all_gather(tensor)
        if self._workers.size == 1:
            return joined
        first = self._local.rank == 0
        return self._local.all_gather(self._workers.all_gather(joined) if first else joined[:0])

    def broadcast(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the first replica's tensor; see `Collectives`."""
        if self._workers.size > 1 and self._local.rank == 0:
            tensor = self._workers.broadcast(tensor)
        return self._local.broadcast(tensor)
