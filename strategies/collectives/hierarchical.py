"""Collectives among workers on several hosts, some of which share memory.

An all-reduce takes three steps: the workers of each host sum in shared memory, one leader per host
sums over the network, and the leader broadcasts the result on its host. So each host sends and
receives the values of one worker; with a ring over all workers it would be nearly those of two.
(Horovod's hierarchical allreduce, HOROVOD_HIERARCHICAL_ALLREDUCE, supports only NCCL and MPI.)
While one all-reduce is on the network, the workers of a host may sum the next one.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from strategies.collectives.base import NetworkCollectives, RowCounts, StreamKeeper
from strategies.collectives.dtypes import all_reduce_by_dtype, reshape_like
from strategies.collectives.shared_memory import Host, SharedMemoryCollectives


class HierarchicalCollectives(StreamKeeper):
    """Collectives over the network, with sums that begin and end in each host's shared memory.

    All workers of the network create them together.

    Args:
      network: the collectives among all workers.
      host: this worker's host.
    """

    def __init__(self, network: NetworkCollectives, host: Host):
        super().__init__()
        self.rank = network.rank
        self.size = network.size
        self._network = network
        self._host = host
        # Two streams, so that a sum need not wait until the result of the previous one is copied.
        self._sums, self._copies = (SharedMemoryCollectives(host) for _ in range(2))
        self._leaders = network.subset(host.leaders)

    def _make_stream(self) -> HierarchicalCollectives:
        return HierarchicalCollectives(self._network.new_stream(), self._host)

    def all_reduce(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the sums over all workers; see `Collectives`."""
        return all_reduce_by_dtype(tensors, lambda group, _: self._all_reduce_group(group))

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the workers' tensors concatenated along axis 0; see `Collectives`."""
        return self._network.all_gather(tensor)

    def broadcast(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the first worker's tensor; see `Collectives`."""
        return self._network.broadcast(tensor)

    def all_to_all(
        self, tensor: tf.Tensor, counts: tf.Tensor, known: RowCounts | None = None
    ) -> tuple[tf.Tensor, RowCounts]:
        """Returns the rows that the workers sent to this one; see `Collectives`."""
        return self._network.all_to_all(tensor, counts, known)

    def _all_reduce_group(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        vectors = [tf.reshape(tensor, [-1]) for tensor in tensors]
        # A host with one worker takes part in the second step only. Only leaders have collectives
        # among leaders; the sums of the others are replaced in the third step.
        if self._host.size > 1:
            vectors = self._sums.reduce_vectors(vectors)
        if self._leaders is not None:
            vectors = self._leaders.all_reduce(vectors)
        if self._host.size > 1:
            vectors = self._copies.broadcast_vectors(vectors)
        return [reshape_like(*pair) for pair in zip(tensors, vectors, strict=True)]
