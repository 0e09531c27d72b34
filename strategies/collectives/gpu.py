"""Collectives among workers with GPUs, some of which are on the same host.

Dense gradients are on the GPUs, where NCCL sums them. All other values are in the hosts' memory:
the ids and rows of tables, integers, the rows of sparse gradients. NCCL would need these values on
the GPUs, and a ring over the network would send them to all workers, so they are exchanged through
shared memory where possible.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from strategies.collectives.base import Collectives, RowCounts


class GpuCollectives:
    """Collectives that sum floats with one implementation, and do everything else with another.

    Operations of the two are ordered independently, as those of two streams are.

    Args:
      sums: the collectives that sum floats, on the GPUs.
      others: the collectives that exchange all other values, through the hosts' memory.
    """

    def __init__(self, sums: Collectives, others: Collectives):
        self.rank = sums.rank
        self.size = sums.size
        self._sums = sums
        self.others = others

    def new_stream(self) -> Collectives:
        """Returns collectives through the hosts' memory; see `Collectives`.

        Whatever needs a stream of its own, such as a dataset, has no tensors on a GPU.
        """
        return self.others.new_stream()

    def all_reduce(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the sums over all workers; see `Collectives`."""
        are_floats = [tensor.dtype.is_floating for tensor in tensors]
        floats = [tensor for tensor in tensors if tensor.dtype.is_floating]
        rest = [tensor for tensor in tensors if not tensor.dtype.is_floating]
        sums = iter(self._sums.all_reduce(floats) if floats else [])
        counts = iter(self.others.all_reduce(rest) if rest else [])
        return [next(sums) if is_float else next(counts) for is_float in are_floats]

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the workers' tensors concatenated along axis 0; see `Collectives`."""
        return self.others.all_gather(tensor)

    def broadcast(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the first worker's tensor; see `Collectives`."""
        return self.others.broadcast(tensor)

    def all_to_all(
        self, tensor: tf.Tensor, counts: tf.Tensor, known: RowCounts | None = None
    ) -> tuple[tf.Tensor, RowCounts]:
        """Returns the rows that the workers sent to this one; see `Collectives`."""
        return self.others.all_to_all(tensor, counts, known)
