"""Collectives by way of the parameter servers, for workers that know the servers alone.

What workers give each other goes through queues on the servers. Sums are made there, by rank, so
that they are the same bits on every worker and in every run; each server sums its part.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.collectives.base import ExchangeByGathering
from strategies.collectives.dtypes import summed_as
from strategies.server.connection import Server, Servers
from strategies.server.turn import Turn

_CAPACITY = 1 << 20
_HEADER = 8  # bytes: the number of rows


class ServerCollectives(ExchangeByGathering):
    """Collectives among all workers of a job with parameter servers; see `Collectives`.

    Args:
      servers: of the job.
      stream: tells what has an order of its own from the rest.
    """

    def __init__(self, servers: Servers, stream: str = "0"):
        self.rank = servers.rank
        self.size = servers.size
        self._servers = servers
        self._stream = stream
        self._streams = itertools.count()
        self._apart: list[ServerCollectives] = []
        self._turn = Turn()

    def apart(self) -> ServerCollectives:
        """Returns collectives whose operations have an order of their own; see `Collectives`."""
        stream = f"{self._stream}.{next(self._streams)}"
        # Kept, for what tf.data holds is a variable's handle, and not the variable.
        self._apart.append(ServerCollectives(self._servers, stream))
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

        def add(server: Server) -> np.ndarray:
            feed, give, take = self._summing(server, vector.dtype)
            fetches = [take, give]
            return server.run(fetches, {feed: parts[server.number]})[0]

        return [np.concatenate(self._servers.each(add))]

    def _summing(self, server: Server, dtype: np.dtype) -> tuple[tf.Tensor, Any, tf.Tensor]:
        """Returns where this worker's part goes in, what sends it, and where the sum comes out."""

        def build() -> tuple[tf.Tensor, Any, tf.Tensor]:
            feed = tf.compat.v1.placeholder(dtype, [None])
            given = self._queues(server, f"sum/{np.dtype(dtype).name}/given", dtype)
            sums = self._queues(server, f"sum/{np.dtype(dtype).name}/sums", dtype)
            work = [given[self.rank].enqueue(feed)]
            # Each server's sums are made by one of the workers, for it.
            if server.number % self.size == self.rank:
                total = tf.add_n([queue.dequeue() for queue in given])
                work += [queue.enqueue(total) for queue in sums]
            return feed, tf.group(*work), sums[self.rank].dequeue()

        return server.once(("sum", self._stream, np.dtype(dtype).name), build)

    def _joined(self, array: np.ndarray) -> list[np.ndarray]:
        mine = len(array).to_bytes(_HEADER, "little") + np.ascontiguousarray(array).tobytes()
        server = self._servers.servers[0]
        feed, give, take = self._gathering(server)
        others, _ = server.run([take, give], {feed: mine})
        parts = [
            array if rank == self.rank else _array(others[rank], array) for rank in range(self.size)
        ]
        return [np.concatenate(parts)]

    def _gathering(self, server: Server) -> tuple[tf.Tensor, Any, dict[int, tf.Tensor]]:
        def build() -> tuple[tf.Tensor, Any, dict[int, tf.Tensor]]:
            feed = tf.compat.v1.placeholder(tf.string, [])
            others = [rank for rank in range(self.size) if rank != self.rank]
            to = self._queues(server, f"gather/from {self.rank}", tf.string)
            give = tf.group(*(to[rank].enqueue(feed) for rank in others))
            take = {
                rank: self._queues(server, f"gather/from {rank}", tf.string)[self.rank].dequeue()
                for rank in others
            }
            return feed, give, take

        return server.once(("gather", self._stream), build)

    def _queues(self, server: Server, name: str, dtype: Any) -> list[tf.queue.FIFOQueue]:
        """Returns a queue on a server for each worker."""
        return server.once(
            ("queues", self._stream, name),
            lambda: [
                tf.queue.FIFOQueue(_CAPACITY, [dtype], shared_name=f"{self._stream}/{name}/{rank}")
                for rank in range(self.size)
            ],
        )


def _array(data: bytes, like: np.ndarray) -> np.ndarray:
    rows = int.from_bytes(data[:_HEADER], "little")
    return np.frombuffer(data[_HEADER:], like.dtype).reshape(rows, *like.shape[1:])
