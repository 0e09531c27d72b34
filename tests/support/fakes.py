"""Workers that are only numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from strategies.collectives.base import LocalCollectives


class FakeWorker(LocalCollectives):
    """The collectives of one of several workers, of which the others do as they are told.

    Args:
      rank: its rank.
      size: how many workers there are.
      others: given another worker's rank and what this one brings to `all_gather`, returns what
        the other one brings; by default the same.

    Attributes:
      agreements: how often workers agreed on a call that they make together.
      exchanges: how often they exchanged anything else.
    """

    def __init__(
        self,
        rank: int = 0,
        size: int = 2,
        others: Callable[[int, tf.Tensor], object] = lambda rank, mine: mine,
    ):
        self.rank, self.size, self._others = rank, size, others
        self.agreements = self.exchanges = 0

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        is_agreement = tensor.dtype == tf.uint8
        self.agreements += is_agreement
        self.exchanges += not is_agreement
        return tf.concat(
            [
                tensor
                if rank == self.rank
                else tf.convert_to_tensor(self._others(rank, tensor), tensor.dtype)
                for rank in range(self.size)
            ],
            0,
        )


def with_steps(rank: int, size: int, steps: Sequence[int] = ()) -> FakeWorker:
    """Returns a worker of which the others have the numbers of steps by rank, or all as many."""

    def other(rank: int, mine: tf.Tensor) -> object:
        return [steps[rank]] if steps and mine.shape.rank == 1 else mine

    return FakeWorker(rank, size, other)
