"""The workers of each host and the memory that they share."""

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
from strategies.collectives.startup.rendezvous import Exchange

_FAILED, _DONE = b"failed", b"done"
_IDENTITY_BYTES = 128


class WorkerEndedError(RuntimeError):
    """Raised when a worker has ended while another one waits for it."""


class Host:
    """The workers of this host and the memory that they share; created by `discover`.

    Args:
      rank: this worker's rank on this host.
      names: the names of this host's workers, by rank, for messages.
      leaders: for each host, the rank of its first worker among all workers of the job.
      own: this worker's memory.
      peers: the memory of each other worker of this host, by rank.
      is_first: whether this is the first worker of the job.

    Attributes:
      rank: this worker's rank on this host, from 0.
      size: the number of workers on this host.
      leaders: for each host, the rank of its first worker among all workers of the job.
      is_first: whether this is the first worker of the job.
    """

    def __init__(
        self,
        rank: int,
        names: Sequence[str],
        leaders: Sequence[int],
        own: OwnMemory,
        peers: Mapping[int, PeerMemory],
        is_first: bool,
    ):
        self.rank = rank
        self.size = len(names)
        self.leaders = leaders
        self.is_first = is_first
        self._names = names
        self._own = own
        self._peers = peers
        self._channels = itertools.count()

    @classmethod
    def discover(
        cls, rank: int, names: Sequence[str], exchange: Exchange, is_wanted: bool = True
    ) -> Host | None:
        """Returns this worker's host; None on all workers if one of them cannot share memory.

        Args:
          rank: this worker's rank in the job.
          names: the names of all workers, by rank.
          exchange: exchanges bytes among all workers, which call this method together.
          is_wanted: whether this worker may share memory.
        """
        # Every exchange needs all workers, so all workers must return after the same one.
        own = OwnMemory.create() if is_wanted and is_supported() else None
        hosts = exchange(b"" if own is None else host_identity())
        if own is None or b"" in hosts:
            return None
        places = exchange(f"{os.getpid()} {own.number}".encode())
        here = [other for other, host in enumerate(hosts) if host == hosts[rank]]
        # Opening another worker's memory may fail, for example because of a security policy. Only
        # the worker that tried knows, so the outcomes are exchanged.
        peers: dict[int, PeerMemory] = {}
        outcome = _DONE
        for number, other in enumerate(here):
            if other != rank:
                try:
                    peers[number] = PeerMemory(*map(int, places[other].split()))
                except OSError:
                    outcome = _FAILED
        if _FAILED in exchange(outcome):
            return None
        leaders = [other for other, host in enumerate(hosts) if host not in hosts[:other]]
        names_here = [names[other] for other in here]
        return cls(here.index(rank), names_here, leaders, own, peers, rank == 0)

    def new_channel(self) -> Channel:
        """Returns the next channel; all workers create their channels in the same order."""
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
                f"All workers must run until the last exchange. Received: {self._names[rank]} has "
                f"ended while {self._names[self.rank]} waits for it. See its output; all workers "
                "must train for the same number of steps."
            )


def exchange_over(collectives: Collectives) -> Exchange:
    """Returns a function that exchanges a few bytes through collectives."""

    def exchange(own: bytes) -> list[bytes]:
        padded = np.frombuffer(own[:_IDENTITY_BYTES].ljust(_IDENTITY_BYTES), np.uint8)
        gathered = collectives.all_gather(tf.constant(padded[np.newaxis].astype(np.int32))).numpy()
        return [bytes(each.astype(np.uint8)).rstrip() for each in gathered]

    return exchange
