"""The interface of collectives, and its implementation for a single worker.

[Note: whose turn it is]
Collective operations of different workers are matched by their order: the n-th operation of a
stream on one worker is matched with the n-th on all others. If workers issued their operations in
different orders, each would wait forever in an operation that the others have not reached, or they
would sum unrelated tensors of the same shape. In eager code, the order is that of the program. In a
`tf.function`, TensorFlow starts an operation as soon as its inputs are ready, in a different order
on each worker. So each implementation chains the operations of a stream to one resource, because
TensorFlow keeps operations on the same resource in order, also in branches, in loops and from one
step to the next: TensorFlow's collectives take a variable's handle as their `ordering_token`, those
of Horovod write to a variable (`_run_named`), and calls of Python functions pass a ticket on
through a variable (`ordered_calls.py`) or through queues (`shared_memory/stream.py`). Whatever runs
concurrently with the steps, at times that differ between workers, needs a stream of its own; a
dataset is an example.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

import tensorflow as tf

_Keeper = TypeVar("_Keeper", bound="StreamKeeper")


class OperationsDifferError(RuntimeError):
    """Raised when workers exchange values in different operations.

    Args:
      operations: the operation that each worker is in, by rank.
    """

    def __init__(self, operations: Mapping[int, str]):
        received = ", ".join(f"{name!r} on worker {rank}" for rank, name in operations.items())
        super().__init__(
            f"All workers must exchange the same values in the same order. Received: {received}. "
            "Either one of them makes other calls, or a step failed on all of them at different "
            "places. Workers cannot continue after that: restart the job from its last checkpoint."
        )


class RowCounts(NamedTuple):
    """How many rows `Collectives.all_to_all` has exchanged.

    Attributes:
      received: [size], the number of rows from each worker.
      most: int32, the most rows that one worker has sent to another; 0 if the collectives do not
        need to know it.
    """

    received: tf.Tensor
    most: tf.Tensor


class Collectives(Protocol):
    """Collective operations, which all workers call in the same order.

    They work eagerly and inside `tf.function`. A worker that calls an operation waits until all
    other workers call it; see [Note: whose turn it is].

    Attributes:
      rank: this worker's rank, from 0.
      size: the number of workers.
    """

    rank: int
    size: int

    def new_stream(self) -> Collectives:
        """Returns collectives among the same workers whose operations are ordered independently.

        A dataset needs its own stream: TensorFlow prepares batches during training, at different
        times on each worker. All workers must call this method together.
        """

    def all_reduce(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the sums over all workers, bitwise identical on each.

        Args:
          tensors: numeric tensors, each with the same shape and dtype on every worker.
        """

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the workers' tensors concatenated along axis 0, by rank.

        Args:
          tensor: a tensor of rank 1 or more; only its first dimension may differ between workers.
        """

    def broadcast(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the first worker's tensor.

        Args:
          tensor: a tensor of the same shape and dtype on every worker.
        """

    def all_to_all(
        self, tensor: tf.Tensor, counts: tf.Tensor, known: RowCounts | None = None
    ) -> tuple[tf.Tensor, RowCounts]:
        """Returns the rows that all workers sent to this one, by rank, and their numbers.

        Args:
          tensor: the rows to send, ordered by the receiver's rank; only the number of rows may
            differ between workers.
          counts: [size], the number of rows for each worker.
          known: what this call will return as the numbers, if all workers know it from an exchange
            of as many rows, or of as many in the other direction. It saves those collectives a
            round trip that have to agree on the size of messages.
        """


class NetworkCollectives(Collectives, Protocol):
    """Collectives among workers on any hosts."""

    def new_stream(self) -> NetworkCollectives:
        """Returns collectives whose operations are ordered independently; see `Collectives`."""

    def subset(self, ranks: Sequence[int]) -> Collectives | None:
        """Returns collectives among some of the workers; None on the other workers.

        All workers must call this method together. Within the subset, workers are ranked from 0.

        Args:
          ranks: the ranks of the subset's workers, in ascending order.
        """


class StreamKeeper:
    """Implements `new_stream`, and keeps streams alive as long as the collectives they belong to.

    The operations of a stream, and a dataset that contains them, refer to the stream's variables
    and queues by their handles only. TensorFlow deletes these resources together with their Python
    objects, so if nothing referred to the stream, reading the dataset would fail.

    Attributes:
      calls_python: whether functions run operations by `OrderedCalls`.
    """

    calls_python = False

    def __init__(self) -> None:
        self._child_streams: list[StreamKeeper] = []

    def new_stream(self: _Keeper) -> _Keeper:
        """Returns collectives whose operations are ordered independently; see `Collectives`."""
        stream = self._make_stream()
        self._child_streams.append(stream)
        return stream

    def _make_stream(self: _Keeper) -> _Keeper:
        raise NotImplementedError


class AllToAllViaAllGather:
    """Implements `all_to_all` with `all_gather`, for collectives that have no such operation.

    Every worker receives all rows and keeps its own: with N workers, N times the traffic.
    """

    rank: int
    size: int
    all_gather: Callable[[tf.Tensor], tf.Tensor]

    def all_to_all(
        self, tensor: tf.Tensor, counts: tf.Tensor, known: RowCounts | None = None
    ) -> tuple[tf.Tensor, RowCounts]:
        """Returns the rows that the workers sent to this one; see `Collectives`."""
        sent = tf.reshape(self.all_gather(counts), [self.size, self.size])
        # Rows are gathered by sender, and those of a sender are ordered by receiver: the sums over
        # the flattened matrix are where the rows from each sender to each receiver begin.
        starts = tf.reshape(tf.cumsum(tf.reshape(sent, [-1]), exclusive=True), tf.shape(sent))
        everything = self.all_gather(tensor)
        parts = [
            everything[starts[rank, self.rank] : starts[rank, self.rank] + sent[rank, self.rank]]
            for rank in range(self.size)
        ]
        return tf.concat(parts, 0), RowCounts(sent[:, self.rank], tf.constant(0))


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

    def all_to_all(
        self, tensor: tf.Tensor, counts: tf.Tensor, known: RowCounts | None = None
    ) -> tuple[tf.Tensor, RowCounts]:
        """Returns the tensor and the counts."""
        return tensor, RowCounts(counts, tf.constant(0))
