"""Messages between the workers of one host: each writes to its own memory, and the others read it.

[Note: the shared-memory protocol]
A worker's part of a channel is a ring of two chunks and some counters: the number of chunks that it
has written, and the number that it has read of each other worker. Only the owner writes to a part,
so nothing needs a lock, and a worker that is killed leaves none held:

* A chunk's content and label are written before the counter of written chunks (`end_write`), and
  are read after it (`begin_read`). There is no memory fence in between, so this holds only where
  other cores see stores in program order (`_ORDERED_STORES` in memory.py). A counter is an aligned
  word of eight bytes, so that it is never read half-written.
* A chunk is overwritten once all others have counted it as read (`begin_write`), so every worker
  must read every chunk of all others, even one whose content it does not need. If an operation
  skipped one, the writer would block two chunks later.
* Workers cannot deadlock as long as each reads chunk n of all others before it writes chunk n + 2.
  `transfers.py` writes one chunk ahead: while a worker processes chunk n, the others can already
  write and read n + 1.
* Each chunk has a label that names the operation it belongs to. Workers in different operations
  find out at the first chunk, instead of summing unrelated bytes.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Sequence

import numpy as np

from strategies.collectives.base import OperationsDifferError
from strategies.collectives.shared_memory.buffers import BufferPool

CHUNK_BYTES = 1 << 20
_CHUNKS = 2
_LABEL_BYTES = 256
_LINE_BYTES = 64  # a cache line; each counter has its own
_SPINS = 200
_FIRST_SLEEP_SECONDS = 2e-5
_LONGEST_SLEEP_SECONDS = 1e-3
_CHECK_SECONDS = 0.5


def bytes_of_channel(size: int) -> int:
    """Returns the number of bytes of one worker's part of a channel among `size` workers."""
    return _in_pages(_counter_bytes(size) + _CHUNKS * (CHUNK_BYTES + _LABEL_BYTES))


def _counter_bytes(size: int) -> int:
    return _in_pages((1 + size) * _LINE_BYTES)


def _in_pages(length: int) -> int:
    return -(-length // mmap.PAGESIZE) * mmap.PAGESIZE


class Channel:
    """One worker's view of a channel.

    Args:
      rank: this worker's rank.
      parts: the workers' parts, by rank: `bytes_of_channel` bytes each.
      check: called with a worker's rank during long waits; raises if that worker has ended.

    Attributes:
      buffers: memory for the results of operations.
    """

    def __init__(self, rank: int, parts: Sequence[mmap.mmap], check: Callable[[int], None]):
        self.rank = rank
        self.size = len(parts)
        self.buffers = BufferPool()
        self.peers = [peer for peer in range(self.size) if peer != rank]
        self._check = check
        self._counters = [memoryview(part).cast("q") for part in parts]
        start = _counter_bytes(self.size)
        length = _CHUNKS * (CHUNK_BYTES + _LABEL_BYTES)
        chunks = [np.frombuffer(part, np.uint8, length, start) for part in parts]
        self._chunks = [chunk.reshape(_CHUNKS, -1)[:, :CHUNK_BYTES] for chunk in chunks]
        self._labels = [chunk.reshape(_CHUNKS, -1)[:, CHUNK_BYTES:] for chunk in chunks]
        self._label = np.zeros(_LABEL_BYTES, np.uint8)
        self._different: dict[int, str] = {}
        self._written = 0
        self._read = [0] * self.size
        # With more workers than cores, spinning would take CPU time from the other workers.
        self._spins = _SPINS if self.size <= len(os.sched_getaffinity(0)) else 1

    # See [Note: the shared-memory protocol] for the order in the four methods below.

    def begin_operation(self, label: str) -> None:
        """Sets the label of the next chunks.

        Args:
          label: the name of the operation, the same on all workers that are in it.

        Raises:
          OperationsDifferError: if the workers were in different operations before.
        """
        # After an error, unread chunks remain and the workers' counters differ, so that no later
        # operation of this channel can succeed.
        if self._different:
            raise OperationsDifferError(self._different)
        content = label.encode("ascii", "replace")[:_LABEL_BYTES].ljust(_LABEL_BYTES)
        self._label = np.frombuffer(content, np.uint8)

    def begin_write(self) -> np.ndarray:
        """Returns the next chunk to fill, once all others have read its content."""
        for peer in self.peers:
            self._wait(peer, _read_counter(self.rank), self._written - _CHUNKS + 1)
        return self._chunks[self.rank][self._written % _CHUNKS]

    def end_write(self) -> None:
        """Lets the other workers read the chunk."""
        self._labels[self.rank][self._written % _CHUNKS] = self._label
        self._written += 1
        self._counters[self.rank][0] = self._written

    def begin_read(self, peer: int) -> np.ndarray:
        """Returns the next chunk of another worker, once it is written.

        Raises:
          OperationsDifferError: if the chunk belongs to another operation.
        """
        self._wait(peer, 0, self._read[peer] + 1)
        place = self._read[peer] % _CHUNKS
        theirs = self._labels[peer][place]
        if not np.array_equal(theirs, self._label):
            labels = {self.rank: self._label, peer: theirs}
            self._different = {rank: bytes(one).decode().strip() for rank, one in labels.items()}
            raise OperationsDifferError(self._different)
        return self._chunks[peer][place]

    def end_read(self, peer: int) -> None:
        """Lets the other worker overwrite the chunk."""
        self._read[peer] += 1
        self._counters[self.rank][_read_counter(peer)] = self._read[peer]

    def _wait(self, peer: int, counter: int, at_least: int) -> None:
        counters = self._counters[peer]
        for _ in range(self._spins):
            if counters[counter] >= at_least:
                return
            os.sched_yield()
        # Increasing pauses: a long wait must not take a core from a worker that is computing.
        pause, checked = _FIRST_SLEEP_SECONDS, time.monotonic()
        while counters[counter] < at_least:
            time.sleep(pause)
            pause = min(pause * 1.2, _LONGEST_SLEEP_SECONDS)
            if time.monotonic() - checked > _CHECK_SECONDS:
                checked = time.monotonic()
                # Read again: the worker may have ended after it updated the counter.
                if counters[counter] < at_least:
                    self._check(peer)


def _read_counter(writer: int) -> int:
    return (1 + writer) * _LINE_BYTES // 8
