"""Workers that are threads of one process, and meet where collectives do."""

from __future__ import annotations

import threading
from collections.abc import Callable

import tensorflow as tf

from strategies.collectives.base import (
    AllToAllViaAllGather,
    Collectives,
    LocalCollectives,
    RowCounts,
)


class Meeting:
    """Lets threads give each other values."""

    def __init__(self, size: int):
        self.size = size
        self.barrier = threading.Barrier(size)
        self.values = [None] * size

    def exchange(self, rank: int, value: object) -> list:
        """Returns what all threads bring, by rank."""
        self.values[rank] = value
        self.barrier.wait(60)
        values = list(self.values)
        self.barrier.wait(60)
        return values


class ThreadWorker(AllToAllViaAllGather):
    """The collectives of a worker that is a thread; counts its exchanges."""

    def __init__(self, meeting: Meeting, rank: int):
        self._meeting = meeting
        self.rank, self.size = rank, meeting.size
        self.exchanges = 0

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        return tf.concat(self._meeting.exchange(self.rank, tensor), 0)

    def all_reduce(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        return [tf.add_n(self._meeting.exchange(self.rank, tensor)) for tensor in tensors]

    def broadcast(self, tensor: tf.Tensor) -> tf.Tensor:
        return self._meeting.exchange(self.rank, tensor)[0]

    def all_to_all(
        self, tensor: tf.Tensor, counts: tf.Tensor, known: RowCounts | None = None
    ) -> tuple[tf.Tensor, RowCounts]:
        self.exchanges += 1
        return super().all_to_all(tensor, counts, known)


def on_workers(size: int, worker: Callable[[Collectives], object]) -> list:
    """Returns what `worker` returns on each of so many workers, given its collectives."""
    if size == 1:
        return [worker(LocalCollectives())]
    meeting, results, errors = Meeting(size), [None] * size, []

    def run(rank):
        try:
            results[rank] = worker(ThreadWorker(meeting, rank))
        except threading.BrokenBarrierError:
            pass
        except Exception as error:
            errors.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=run, args=[rank]) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
