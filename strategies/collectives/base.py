"""The interface of collectives, and its implementation for a single worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import tensorflow as tf


class OperationsDifferError(RuntimeError):
    """Workers exchange values in different operations.

    Args:
      operations: by rank, what workers are in.
    """

    def __init__(self, operations: Mapping[int, str]):
        found = ", ".join(f"{name!r} on worker {rank}" for rank, name in operations.items())
        super().__init__(
            f"All workers exchange the same values in the same order. Received: {found}. Either "
            "one of them does what the others do not, or a step failed on all of them at "
            "different moments. After that they cannot go on: start the job again, from its last "
            "checkpoint."
        )


class Collectives(Protocol):
    """Collective operations, which all workers call in the same order.

    They work eagerly and inside `tf.function`. A worker that calls one alone waits for the
    others.

    Attributes:
      rank: this worker's number, from 0.
      size: how many workers there are.
    """

    rank: int
    size: int

    def new_stream(self) -> Collectives:
        """Returns collectives among the same workers whose operations are ordered independently.

        A dataset takes them: TensorFlow makes its batches at the same time as it trains, here
        sooner and there later. All workers call this together, too.
        """

    def all_reduce(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the sums over all workers, the same bits on each.

        Args:
          tensors: numeric tensors, each with the same shape and dtype on every worker.
        """

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the workers' tensors joined along axis 0, by rank.

        Args:
          tensor: of rank 1 or more; only the first dimension may differ between workers.
        """

    def broadcast(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the first worker's tensor.

        Args:
          tensor: of the same shape and dtype on every worker.
        """

    def all_to_all(self, tensor: tf.Tensor, counts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the rows that all workers sent to this one, by rank, and the number from each.

        Args:
          tensor: rows, those for the first worker first; only their number may differ between
            workers.
          counts: [size], how many rows are for each worker.
        """


class NetworkCollectives(Collectives, Protocol):
    """Collectives among workers of any hosts."""

    def new_stream(self) -> NetworkCollectives:
        """Returns collectives whose operations are ordered independently; see `Collectives`."""

    def subset(self, ranks: Sequence[int]) -> Collectives | None:
        """Returns collectives among some of the workers; None on the others.

        All workers call it together. In the subset the first of them has rank 0, and so on.

        Args:
          ranks: of the workers, in ascending order.
        """


class AllToAllViaAllGather:
    """Implements `all_to_all` by `all_gather`, for collectives without an operation for it.

    Every worker gets all rows and keeps its own, which among N workers is N times the traffic.
    """

    rank: int
    size: int
    all_gather: Callable[[tf.Tensor], tf.Tensor]

    def all_to_all(self, tensor: tf.Tensor, counts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the rows that the workers sent to this one; see `Collectives`."""
        sent = tf.reshape(self.all_gather(counts), [self.size, self.size])
        starts = tf.reshape(tf.cumsum(tf.reshape(sent, [-1]), exclusive=True), tf.shape(sent))
        everything = self.all_gather(tensor)
        parts = [
            everything[starts[rank, self.rank] : starts[rank, self.rank] + sent[rank, self.rank]]
            for rank in range(self.size)
        ]
        return tf.concat(parts, 0), sent[:, self.rank]


class LocalCollectives:
    """The collectives of a single worker: each returns its argument.

    >>> LocalCollectives().all_gather(tf.constant([1, 2])).numpy().tolist()
    [1, 2]
    """

    rank = 0
    size = 1

    def new_stream(self) -> LocalCollectives:
        """Returns itself: there are no other workers to wait for."""
        return self

    def all_reduce(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the tensors."""
        return list(tensors)

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the tensor."""
        return tensor

    def broadcast(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the tensor."""
        return tensor

    def all_to_all(self, tensor: tf.Tensor, counts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the tensor and the counts."""
        return tensor, counts
