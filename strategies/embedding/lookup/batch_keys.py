"""Keys of the batches of a dataset, which its pipeline makes known before the steps need them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Keys = Sequence[np.ndarray]

# A pipeline is a few batches ahead of the steps. Batches that no step takes, because the layer is
# frozen or a resumed job skips them, must not fill the memory.
_MOST_BATCHES = 64


@dataclass(frozen=True, eq=False)
class _Batch:
    """A batch that no step has used yet.

    Attributes:
      place: number of the iteration over a dataset, and of the batch in it.
      keys: its keys on each replica, int64 [n, 3].
      following: the keys of the batch after it; None at the end of the dataset.
    """

    place: tuple[int, int]
    keys: Keys
    following: Keys | None

    def has(self, keys: Keys) -> bool:
        """Returns whether these are the keys of the batch."""
        return all(map(np.array_equal, self.keys, keys))


class BatchKeys:
    """The keys of the next batches of the datasets that `prefetch_rows` returned for a layer.

    Pipelines submit batches, and steps take them; both do so in the same order on all workers, so
    all workers find the rows of a batch exchanged, or none does.

    Args:
      replicas: the number of replicas of a worker.
    """

    def __init__(self, replicas: int):
        self.replicas = replicas
        self._batches: deque[_Batch] = deque(maxlen=_MOST_BATCHES)
        self._iterations = 0
        # The place of the batch whose rows were exchanged last.
        self._exchanged: tuple[int, int] | None = None
        self._lock = threading.Lock()

    def begin(self) -> int:
        """Returns the number of a new iteration over a dataset."""
        with self._lock:
            self._iterations += 1
            return self._iterations

    def submit(self, place: tuple[int, int], keys: Keys, following: Keys | None) -> None:
        """Adds a batch."""
        with self._lock:
            self._batches.append(_Batch(place, keys, following))

    def take(self, keys: Keys) -> tuple[bool, Keys | None]:
        """Removes the batch with these keys, and those before it that no step has used.

        Returns:
          Whether its rows were exchanged in the step before, and the keys of the batch after it,
          whose rows must be exchanged now.

        Raises:
          ValueError: if there is no such batch.
        """
        with self._lock:
            found = self._find(keys)
            is_there = found.place == self._exchanged
            self._forget(found.place)
            iteration, number = found.place
            self._exchanged = None if found.following is None else (iteration, number + 1)
            return is_there, found.following

    def _find(self, keys: Keys) -> _Batch:
        expected = [each for each in self._batches if each.place == self._exchanged]
        for batch in (*expected, *self._batches):
            if batch.has(keys):
                return batch
        raise ValueError(
            "A layer whose rows are prefetched must be trained on the datasets that prefetch_rows "
            "returned for it, and `ids` must return what the layer is called with. Received: a "
            "step with other ids than those of the next batches. Correct `ids`, and pass the "
            "dataset that prefetch_rows returns to fit unchanged, without calling map or batch on "
            "it."
        )

    def _forget(self, place: tuple[int, int]) -> None:
        later = [each for each in self._batches if each.place > place]
        self._batches = deque(later, _MOST_BATCHES)

    def clear(self) -> None:
        """Discards the rows that were exchanged, because rows have changed other than by steps."""
        with self._lock:
            self._exchanged = None
