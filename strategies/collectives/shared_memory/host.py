"""The workers of each host, and the memory that they share."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from strategies.collectives.base import Collectives
from strategies.collectives.shared_memory.channel import Channel, bytes_of_channel
from strategies.collectives.shared_memory.memory import (
    OwnMemory,
    PeerMemory,
    host_identity,
    is_supported,
)

_IDENTITY_BYTES = 128


class WorkerEndedError(RuntimeError):
    """A worker has ended while another one waits for it."""


class Host:
    """The workers of this host, and the memory that they share; made by `meet`.

    Args:
      rank: this worker's number among them.
      names: theirs, by rank, for messages.
      leaders: for each host the number, among all workers of the job, of its first worker.
      own: this worker's memory.
      peers: that of each other one, by rank.

    Attributes:
      rank: this worker's number on this host, from 0.
      size: how many workers are on this host.
      leaders: as given.
    """

    def __init__(
        self,
        rank: int,
        names: Sequence[str],
        leaders: Sequence[int],
        own: OwnMemory,
        peers: Mapping[int, PeerMemory],
    ):
        self.rank = rank
        self.size = len(names)
        self.leaders = leaders
        self._names = names
        self._own = own
        self._peers = peers
        self._channels = itertools.count()

    @classmethod
    def meet(
        cls, collectives: Collectives, names: Sequence[str], is_wanted: bool = True
    ) -> Host | None:
        """Returns this worker's host; None, on all workers, where one of them may not share memory.

        Args:
          collectives: among all workers of the job, which all call this.
          names: theirs, by rank.
          is_wanted: whether this worker may share memory.
        """
        identity = host_identity() if is_wanted and is_supported() else b""
        mine = np.frombuffer(identity[:_IDENTITY_BYTES].ljust(_IDENTITY_BYTES), np.uint8)
        gathered = collectives.all_gather(tf.constant(mine[np.newaxis].astype(np.int32))).numpy()
        hosts = [bytes(row.astype(np.uint8)).rstrip() for row in gathered]
        if b"" in hosts:
            return None
        own = OwnMemory()
        place = tf.constant([[os.getpid(), own.number]], tf.int64)
        places = collectives.all_gather(place).numpy().tolist()
        here = [rank for rank, host in enumerate(hosts) if host == hosts[collectives.rank]]
        peers: dict[int, PeerMemory] = {}
        failures = 0
        for place_here, rank in enumerate(here):
            if rank != collectives.rank:
                try:
                    peers[place_here] = PeerMemory(*places[rank])
                except OSError:
                    failures = 1
        if int(collectives.all_reduce([tf.constant(failures)])[0]):
            return None
        leaders = [rank for rank, host in enumerate(hosts) if host not in hosts[:rank]]
        names_here = [names[rank] for rank in here]
        return cls(here.index(collectives.rank), names_here, leaders, own, peers)

    def new_channel(self) -> Channel:
        """Returns the next channel; the workers make theirs in the same order."""
        length = bytes_of_channel(self.size)
        start = next(self._channels) * length
        parts = [
            self._own.map(start, length)
            if rank == self.rank
            else self._peers[rank].map(start, length)
            for rank in range(self.size)
        ]
        return Channel(self.rank, parts, self._check_alive)

    def _check_alive(self, rank: int) -> None:
        if self._peers[rank].has_ended():
            raise WorkerEndedError(
                f"Workers exchange values until all of them have ended. Received: "
                f"{self._names[rank]} has ended, and {self._names[self.rank]} waits for it. See "
                "what it printed; all workers train for as many steps."
            )
