"""Collectives by way of the parameter servers, for workers that know the servers alone.

What workers give each other, they bring to barriers on the servers. Sums are made there, by rank,
so that they are the same bits on every worker and in every run; each server sums its part. A
worker that has ended counts as one that brings zeros to a sum, and no rows to a gathering.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from strategies.collectives.base import AllToAllViaAllGather
from strategies.collectives.dtypes import summed_as
from strategies.ps.barrier import Barrier
from strategies.ps.client import Server, Servers
from strategies.ps.ordered_caller import OrderedCaller

_HEADER = 8  # bytes: the number of rows


class ServerCollectives(AllToAllViaAllGather):
    """Collectives among all workers of a job with parameter servers; see `Collectives`.

    Args:
      servers: of the job.
      stream: tells what has an order of its own from the rest; "0" is that of the steps.
      at: connections to the servers, by number, for nothing else.
    """

    def __init__(self, servers: Servers, stream: str = "0", at: Sequence[Server] = ()):
        self.rank = servers.rank
        self.size = servers.size
        self._servers = servers
        self._at = tuple(at) or tuple(server.apart() for server in servers.servers)
        self._stream = stream
        self._streams = itertools.count()
        self._apart: list[ServerCollectives] = []
        self._turn = OrderedCaller()

    def apart(self) -> ServerCollectives:
        """Returns collectives whose operations have an order of their own; see `Collectives`."""
        stream = f"{self._stream}.{next(self._streams)}"
        # Kept, for what tf.data holds is a variable's handle, and not the variable.
        self._apart.append(ServerCollectives(self._servers, stream, self._at))
        return self._apart[-1]

    def all_reduce(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the sums over all workers; see `Collectives`."""
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        groups: dict[tf.DType, list[int]] = {}
        for position, tensor in enumerate(tensors):
            groups.setdefault(summed_as(tensor.dtype), []).append(position)
        sums: list[tf.Tensor] = list(tensors)
        for dtype, positions in groups.items():
            flat = [tf.reshape(tf.cast(tensors[p], dtype), [-1]) for p in positions]
            sizes = [tf.size(vector) for vector in flat]
            (total,) = self._turn.call(self._sum, [tf.concat(flat, 0)], [dtype])
            total = tf.reshape(total, [-1])
            for position, part in zip(positions, tf.split(total, tf.stack(sizes)), strict=True):
                shaped = tf.reshape(part, tf.shape(tensors[position]))
                cast = tf.cast(shaped, tensors[position].dtype)
                sums[position] = tf.ensure_shape(cast, tensors[position].shape)
        return sums

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the workers' tensors joined along axis 0; see `Collectives`."""
        tensor = tf.convert_to_tensor(tensor)
        (joined,) = self._turn.call(self._joined, [tensor], [tensor.dtype])
        return tf.ensure_shape(joined, [None, *tensor.shape[1:]])

    def broadcast(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the first worker's tensor; see `Collectives`."""
        tensor = tf.convert_to_tensor(tensor)
        first = self.all_gather(tensor[tf.newaxis])[0]
        return tf.ensure_shape(first, tensor.shape)

    def _sum(self, vector: np.ndarray) -> list[np.ndarray]:
        parts = np.array_split(vector, len(self._servers))

        def add(server: Server) -> tuple[list[np.ndarray], np.ndarray]:
            at = self._at[server.number]
            return self._summing(at, vector.dtype)(parts[server.number])

        answers = self._servers.each(add)
        self._note(answers[0][1])
        return [np.concatenate([sums for (sums,), _ in answers])]

    def _summing(self, server: Server, dtype: np.dtype) -> Barrier:
        def total(brought: Sequence[tf.Tensor]) -> list[list[tf.Tensor]]:
            return [[functools.reduce(tf.add, brought)]] * self.size

        dtype = tf.as_dtype(dtype)
        name = f"{self._stream}/sum/{dtype.name}"
        # Nothing is a scalar, which is added to a vector of any length.
        return server.once(
            name,
            lambda: Barrier(server, name, self.rank, self.size, dtype, 0, total, [dtype]),
        )

    def _joined(self, array: np.ndarray) -> list[np.ndarray]:
        mine = len(array).to_bytes(_HEADER, "little") + np.ascontiguousarray(array).tobytes()
        others, here = self._gathering(self._at[0])(mine)
        self._note(here)
        return [
            np.concatenate(
                [
                    array if rank == self.rank else _array(bytes(others[rank]), array)
                    for rank in np.flatnonzero(here)
                ]
            )
        ]

    def _gathering(self, server: Server) -> Barrier:
        def exchange(brought: Sequence[tf.Tensor]) -> list[list[tf.Tensor]]:
            # Nobody is sent what he brought.
            return [
                ["" if rank == to else text for rank, text in enumerate(brought)]
                for to in range(self.size)
            ]

        name = f"{self._stream}/gather"
        kinds = [tf.string] * self.size
        return server.once(
            name,
            lambda: Barrier(server, name, self.rank, self.size, tf.string, "", exchange, kinds),
        )

    def _note(self, here: np.ndarray) -> None:
        """Takes note of who was there."""
        if self._stream != "0":
            return
        for rank in np.flatnonzero(np.array(self._servers.here) & ~here):
            logging.warning(
                "Of %d workers, the one of rank %d has ended; the others go on, and it counts as "
                "one that has no more rows.",
                self.size, rank,
            )  # fmt: skip
        self._servers.here = here.tolist()


def _array(data: bytes, like: np.ndarray) -> np.ndarray:
    rows = int.from_bytes(data[:_HEADER], "little")
    return np.frombuffer(data[_HEADER:], like.dtype).reshape(rows, *like.shape[1:])
