"""Messages between the workers of one host: each writes to its own memory, the others read it.

A worker's part of a channel is a ring of chunks and counters: how many chunks it has written, and
how many of each other worker's it has read. A chunk is written again when all others have read it.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Sequence

import numpy as np

CHUNK_BYTES = 1 << 20
_CHUNKS = 2
_LINE_BYTES = 64  # of a cache: counters of different workers do not share one
_SPINS = 200
_FIRST_SLEEP_SECONDS = 2e-5
_LONGEST_SLEEP_SECONDS = 1e-3
_CHECK_SECONDS = 0.5


class PeerEndedError(RuntimeError):
    """A worker has ended while another one waits for it."""


def bytes_of_channel(size: int) -> int:
    """Returns the length of one worker's part of a channel among so many workers."""
    return _counter_bytes(size) + _CHUNKS * CHUNK_BYTES


def _counter_bytes(size: int) -> int:
    pages = -(-(1 + size) * _LINE_BYTES // mmap.PAGESIZE)
    return pages * mmap.PAGESIZE


class Channel:
    """One worker's view of a channel.

    Args:
      rank: this worker's number.
      parts: the workers' parts, by rank: `bytes_of_channel` bytes each.
      check: called while it waits long for a worker, with its rank; raises if that has ended.
    """

    def __init__(self, rank: int, parts: Sequence[mmap.mmap], check: Callable[[int], None]):
        self.rank = rank
        self.size = len(parts)
        self.peers = [peer for peer in range(self.size) if peer != rank]
        self._check = check
        self._counters = [memoryview(part).cast("q") for part in parts]
        start = _counter_bytes(self.size)
        self._chunks = [
            np.frombuffer(part, np.uint8, _CHUNKS * CHUNK_BYTES, start).reshape(_CHUNKS, -1)
            for part in parts
        ]
        self._written = 0
        self._read = [0] * self.size
        # More workers than cores would take each other's time.
        self._spins = _SPINS if self.size <= len(os.sched_getaffinity(0)) else 1

    def begin_write(self) -> np.ndarray:
        """Returns the next chunk to fill, when all others have read what was in it."""
        for peer in self.peers:
            self._wait(peer, _read_counter(self.rank), self._written - _CHUNKS + 1)
        return self._chunks[self.rank][self._written % _CHUNKS]

    def end_write(self) -> None:
        """Lets the others read the chunk."""
        self._written += 1
        self._counters[self.rank][0] = self._written

    def begin_read(self, peer: int) -> np.ndarray:
        """Returns the next chunk of another worker, when it is written."""
        self._wait(peer, 0, self._read[peer] + 1)
        return self._chunks[peer][self._read[peer] % _CHUNKS]

    def end_read(self, peer: int) -> None:
        """Lets the other worker write over the chunk."""
        self._read[peer] += 1
        self._counters[self.rank][_read_counter(peer)] = self._read[peer]

    def _wait(self, peer: int, counter: int, at_least: int) -> None:
        counters = self._counters[peer]
        for _ in range(self._spins):
            if counters[counter] >= at_least:
                return
            os.sched_yield()
        pause, checked = _FIRST_SLEEP_SECONDS, time.monotonic()
        while counters[counter] < at_least:
            time.sleep(pause)
            pause = min(pause * 1.2, _LONGEST_SLEEP_SECONDS)
            if time.monotonic() - checked > _CHECK_SECONDS:
                checked = time.monotonic()
                if counters[counter] < at_least:
                    self._check(peer)


def _read_counter(writer: int) -> int:
    return (1 + writer) * _LINE_BYTES // 8
