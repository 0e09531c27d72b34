"""Collectives through the parameter servers, for workers that are connected only to the servers.

Workers exchange their tensors at barriers on the servers. The servers sum in the order of ranks, so
sums are bitwise identical on every worker and in every run; each server sums its part of a vector.
A worker that has ended contributes zeros to an all-reduce and no rows to an all-gather.

If all workers are on one host, they exchange their tensors in shared memory instead, with the same
sums, until one of them ends.

In an elastic job, a worker that joins later exchanges nothing before it is a member: its operations
are those of a single worker. Workers meet on the first server only, so that all agree on who is
present; see [Note: workers that come and go] in presence.py.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from strategies.collectives.base import (
    AllToAllViaAllGather,
    OperationsDifferError,
    StreamKeeper,
)
from strategies.collectives.dtypes import (
    all_reduce_as_vector,
    all_reduce_by_dtype,
    check_is_numeric,
)
from strategies.collectives.ordered_calls import OrderedCalls
from strategies.collectives.shared_memory import Host, WorkerEndedError, exchange_over, transfers
from strategies.collectives.shared_memory.channel import Channel
from strategies.ps.barrier import Barrier, Combine
from strategies.ps.connection import ServerConnection, ServerGroup
from tf_config.launcher.reports import EXCHANGED, report


class ServerCollectives(StreamKeeper, AllToAllViaAllGather):
    """Collectives among all workers of a job with parameter servers; see `Collectives`.

    Args:
      servers: the servers of the job.
      stream: the name of the stream within which operations are ordered; "0" is the stream of the
        training steps.
      connections: connections to the servers, by number, for collectives only; None opens them.
      host: the host of all workers, whose memory they share; None if they share none.
      calls: orders the operations, if others must be in one order with them; None orders them
        among themselves.
    """

    calls_python = True

    def __init__(
        self,
        servers: ServerGroup,
        stream: str = "0",
        connections: Sequence[ServerConnection] | None = None,
        host: Host | None = None,
        calls: OrderedCalls | None = None,
    ):
        super().__init__()
        self.rank = servers.rank
        self.size = servers.size
        self._servers = servers
        if connections is None:
            connections = [server.new_connection() for server in servers.servers]
        self._connections = tuple(connections)
        self._stream = stream
        self._stream_numbers = itertools.count()
        self._calls = calls or OrderedCalls()
        self._host = host
        self._channel = None if host is None else host.new_channel()

    def share_memory(self, names: Sequence[str], is_wanted: bool = True) -> bool:
        """Makes workers exchange values in shared memory from now on, if all of them can.

        All workers must call it, before they create other streams.

        Args:
          names: the names of the workers by rank, for messages.
          is_wanted: whether this worker may share memory.

        Returns:
          Whether all workers share memory, because they may and are on one host.
        """
        host = Host.discover(self.rank, names, exchange_over(self), is_wanted)
        if host is None or len(host.leaders) > 1:
            return False
        self._host, self._channel = host, host.new_channel()
        return True

    def _make_stream(self) -> ServerCollectives:
        stream = f"{self._stream}.{next(self._stream_numbers)}"
        host = None if self._channel is None else self._host
        return ServerCollectives(self._servers, stream, self._connections, host)

    def all_reduce(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the sums over all workers; see `Collectives`."""

        def all_reduce(group: list[tf.Tensor], dtype: tf.DType) -> list[tf.Tensor]:
            del dtype
            return all_reduce_as_vector(group, self._all_reduce_vector)

        return all_reduce_by_dtype([tf.convert_to_tensor(t) for t in tensors], all_reduce)

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the workers' tensors concatenated along axis 0; see `Collectives`."""
        tensor = tf.convert_to_tensor(tensor)
        check_is_numeric(tensor.dtype)
        (joined,) = self._calls.call(self._gather, [tensor], [tensor.dtype])
        return tf.ensure_shape(joined, [None, *tensor.shape[1:]])

    def broadcast(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the first worker's tensor; see `Collectives`."""
        tensor = tf.convert_to_tensor(tensor)
        first = self.all_gather(tensor[tf.newaxis])[0]
        return tf.ensure_shape(first, tensor.shape)

    def _all_reduce_vector(self, vector: tf.Tensor) -> tf.Tensor:
        (total,) = self._calls.call(self._sum, [vector], [vector.dtype])
        return tf.reshape(total, [-1])

    def _takes_part(self) -> bool:
        """Returns whether others wait for this worker, which trains no longer if they do."""
        presence = self._servers.presence
        if presence is None:
            return True
        presence.stop_training()
        return presence.is_member

    def _sum(self, vector: np.ndarray) -> list[np.ndarray]:
        if not self._takes_part():
            return [vector]
        _report_exchange()

        def in_memory(channel: Channel) -> list[np.ndarray]:
            return transfers.sum_vectors(channel, [vector])

        return self._run_in_memory(in_memory) or self._sum_on_servers(vector)

    def _gather(self, array: np.ndarray) -> list[np.ndarray]:
        if not self._takes_part():
            return [array]
        _report_exchange()

        def in_memory(channel: Channel) -> list[np.ndarray]:
            return transfers.gather(channel, [array])

        return self._run_in_memory(in_memory) or self._gather_on_server(array)

    def _run_in_memory(
        self, operation: Callable[[Channel], list[np.ndarray]]
    ) -> list[np.ndarray] | None:
        """Returns an operation's results; None if workers share no memory, or if one has ended."""
        if self._channel is None:
            return None
        try:
            return operation(self._channel)
        except WorkerEndedError:
            # The operation needs all workers, so none of those that remain has completed it.
            self._channel = None
            return None

    def _sum_on_servers(self, vector: np.ndarray) -> list[np.ndarray]:
        is_elastic = self._servers.presence is not None
        parts = np.array_split(vector, 1 if is_elastic else len(self._servers))

        def add(server: ServerConnection) -> tuple[list[np.ndarray], np.ndarray]:
            connection, dtype = self._connections[server.number], tf.as_dtype(vector.dtype)
            barrier = connection.build_once(lambda: self._sum_barrier(connection, dtype))
            return barrier(parts[server.number])

        results = [add(self._servers.servers[0])] if is_elastic else self._servers.each(add)
        present = results[0][1]
        lengths = np.sum([lengths for (_, lengths), _ in results], axis=0)
        by_rank = {rank: int(lengths[rank]) for rank in np.flatnonzero(present).tolist()}
        if len(set(by_rank.values())) > 1:
            operations = {rank: f"all_reduce of {n} numbers" for rank, n in by_rank.items()}
            raise OperationsDifferError(operations)
        self._record_present(present)
        return [np.concatenate([sums for (sums, _), _ in results])]

    def _sum_barrier(self, server: ServerConnection, dtype: tf.DType) -> Barrier:
        def total(inputs: Sequence[tf.Tensor]) -> list[list[tf.Tensor]]:
            lengths = tf.stack([tf.size(value) for value in inputs])
            # A missing value is a scalar zero, which can be added to a vector of any length.
            is_missing = tf.stack([tf.equal(tf.rank(value), 0) for value in inputs])
            alike = tf.reduce_all(is_missing | tf.equal(lengths, tf.reduce_max(lengths)))
            sums = tf.cond(
                alike,
                lambda: functools.reduce(tf.add, inputs),
                lambda: tf.zeros([0], inputs[0].dtype),
            )
            return [[sums, lengths]] * self.size

        name = f"{self._stream}/sum/{dtype.name}"
        kinds = [dtype, tf.int32]
        return self._barrier(server, name, dtype, 0, total, kinds)

    def _gather_on_server(self, array: np.ndarray) -> list[np.ndarray]:
        server = self._connections[0]
        barrier = server.build_once(lambda: self._gather_barrier(server))
        others, present = barrier(_encode(array))
        ranks = np.flatnonzero(present).tolist()
        own_kind = _kind(array)
        kinds = {
            rank: own_kind if rank == self.rank else bytes(others[rank]).split(b"\n", 1)[0]
            for rank in ranks
        }
        if len(set(kinds.values())) > 1:
            raise OperationsDifferError({rank: kind.decode() for rank, kind in kinds.items()})
        self._record_present(present)
        return [
            np.concatenate(
                [
                    array if rank == self.rank else _decode(bytes(others[rank]), array)
                    for rank in ranks
                ]
            )
        ]

    def _gather_barrier(self, server: ServerConnection) -> Barrier:
        def exchange(inputs: Sequence[tf.Tensor]) -> list[list[tf.Tensor]]:
            # A worker does not receive its own rows.
            return [
                ["" if rank == to else text for rank, text in enumerate(inputs)]
                for to in range(self.size)
            ]

        name = f"{self._stream}/gather"
        kinds = [tf.string] * self.size
        return self._barrier(server, name, tf.string, "", exchange, kinds)

    def _barrier(
        self,
        server: ServerConnection,
        name: str,
        dtype: tf.DType,
        missing_value: object,
        combine: Combine,
        dtypes: Sequence[tf.DType],
    ) -> Barrier:
        return Barrier(
            server, name, self.rank, self.size, dtype, missing_value, combine, dtypes,
            is_elastic=self._servers.presence is not None,
        )  # fmt: skip

    def _record_present(self, present: np.ndarray) -> None:
        """Records which workers took part, and warns of those that have ended."""
        if self._stream != "0":
            return
        for rank in np.flatnonzero(np.array(self._servers.present) & ~present):
            logging.warning(
                "Worker %d of %d has ended; the others continue as if it had no more examples.",
                rank, self.size,
            )  # fmt: skip
        self._servers.present = present.tolist()


@functools.cache
def _report_exchange() -> None:
    """Reports that a restart of this worker alone would repeat an exchange that the others made."""
    report(EXCHANGED)


def _kind(rows: np.ndarray) -> bytes:
    """Returns a description of rows, to compare across workers."""
    return f"all_gather of {rows.dtype} {rows.shape[1:]}".encode()


def _encode(rows: np.ndarray) -> bytes:
    return b"\n".join([_kind(rows), b"%d" % len(rows), rows.tobytes()])


def _decode(data: bytes, like: np.ndarray) -> np.ndarray:
    _, number, values = data.split(b"\n", 2)
    return np.frombuffer(values, like.dtype).reshape(int(number), *like.shape[1:])
