"""Collectives among all replicas, called by each replica of a process separately.

Where a function branches or loops (`tf.cond`, `tf.while_loop`), the replicas' calls cannot be
merged, because each branch is a separate graph. So each replica runs TensorFlow's collective
operations with the other replicas of its process, and the first replica exchanges values with the
first replicas of the other workers.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from strategies.collectives.base import AllToAllViaAllGather, Collectives
from strategies.collectives.tensorflow import TensorFlowCollectives


class ReplicaCollectives(AllToAllViaAllGather):
    """Collectives among all replicas of all workers, for one replica; see `Collectives`.

    Args:
      local: the collectives among the replicas of this process.
      workers: the collectives among the workers; the first replica of each worker calls them.
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
          devices: the replicas' devices.
          workers: the collectives among the workers.
        """
        local = TensorFlowCollectives.within_process(devices, workers.rank)
        return [cls(one, workers) for one in local]

    def new_stream(self) -> ReplicaCollectives:
        """Returns itself: replicas do not read their own datasets."""
        return self

    def all_reduce(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the sums over all replicas; see `Collectives`."""
        sums = self._local.all_reduce(tensors)
        if self._workers.size == 1:
            return sums
        # Only the first replica communicates with other workers. The others receive the result by a
        # second sum, to which they add zeros; this does not change a bit of it.
        first = self._local.rank == 0
        total = self._workers.all_reduce(sums) if first else [tf.zeros_like(s) for s in sums]
        return self._local.all_reduce(total)

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the replicas' tensors concatenated along axis 0, by rank; see `Collectives`."""
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
