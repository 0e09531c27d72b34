"""For which worker the others wait in their exchanges, from when each of them has begun them.

Each worker publishes the times of its latest exchanges; the first one compares them. An exchange
waits for the worker that begins it last.
"""

from __future__ import annotations

import collections
import functools
import json
import math
import threading
from collections.abc import Mapping, Sequence

import numpy as np
from absl import logging

from tf_config import Task
from tf_config.launcher.progress_file import Sample

# The columns of an array of exchanges: the stream, the number in the stream, and the times.
COLUMNS = 4
_STREAM, _NUMBER, _BEGIN, _END = range(COLUMNS)
_NUMBER_BITS = 40
_FEWEST = 8  # exchanges from which the difference of two clocks is estimated
# A worker is named if its share of the waits exceeds an equal share by a fifth, and if the others
# have waited for it for this part of the time.
_SHARE = 0.2
_LEAST_TIME = 0.05

_reports: list[WaitReport] = []


class WaitReport:
    """Adds up for how long each worker has waited for each other one.

    Args:
      tasks: the workers, by rank.
    """

    def __init__(self, tasks: Sequence[Task]):
        self._tasks = list(tasks)
        self._lock = threading.Lock()  # the watchdog's thread adds, and the main thread reports
        # The newest exchange of each stream that was compared.
        self._compared: dict[int, int] = collections.defaultdict(int)
        self._seconds = np.zeros([len(self._tasks)] * 2)
        self._reported = self._seconds.copy()
        # What was compared lies between these, by the first worker's clock. The time of a report
        # would not do: exchanges are compared seconds after their end, so that there may have been
        # more waits since the last report than there was time.
        self._since, self._until = math.inf, -math.inf

    def add(self, exchanges: Sequence[np.ndarray]) -> None:
        """Compares the exchanges that all workers have ended and that were not compared before.

        Args:
          exchanges: the latest exchanges of each worker, by rank; arrays with `COLUMNS` columns.
        """
        tables = [_by_key(each) for each in exchanges]
        keys = functools.reduce(np.intersect1d, [keys for keys, _ in tables])
        streams, numbers = keys >> _NUMBER_BITS, keys & ((1 << _NUMBER_BITS) - 1)
        compared = np.array([self._compared[stream] for stream in streams.tolist()], np.int64)
        keys = keys[numbers > compared]
        if not len(keys):
            return
        for stream, number in zip(streams.tolist(), numbers.tolist(), strict=True):
            self._compared[stream] = max(self._compared[stream], number)
        rows = [table[np.searchsorted(known, keys)] for known, table in tables]
        begins, ends = (np.stack([row[:, column] for row in rows]) for column in (_BEGIN, _END))
        with self._lock:
            self._seconds += waited_seconds(begins, ends)
            self._since = min(self._since, begins[0].min())
            self._until = max(self._until, ends[0].max())

    def end_epoch(self) -> str:
        """Returns a line about the worker that caused most waits since the last call; "" if none.

        An equal share is no cause: each of two workers that are equally fast causes about half of
        the waits.
        """
        with self._lock:
            seconds, self._reported = self._seconds - self._reported, self._seconds.copy()
            elapsed, self._since = self._until - self._since, self._until
        total, count = seconds.sum(), len(self._tasks)
        if not total:
            return ""
        late = int(seconds.sum(axis=0).argmax())
        share = seconds[:, late].sum() / total
        mean = seconds[:, late].sum() / (count - 1)
        if share <= 1 / count + _SHARE or mean < _LEAST_TIME * elapsed:
            return ""
        return (
            f"{self._tasks[late]} caused {share:.0%} of the waits in exchanges: each other worker "
            f"waited {mean:.1f} s of {elapsed:.1f} s for it, on average."
        )

    def to_json(self) -> bytes:
        """Returns the seconds for all workers, of which `samples_of` reads one worker's."""
        with self._lock:
            waits = {
                str(task): {
                    str(late): round(seconds, 3)
                    for late, seconds in zip(self._tasks, row, strict=True)
                    if seconds
                }
                for task, row in zip(self._tasks, self._seconds.tolist(), strict=True)
            }
        return json.dumps(waits).encode()


def samples_of(task: Task, entry: bytes | None) -> list[Sample]:
    """Returns the numbers of one worker in an entry of `WaitReport.to_json`.

    >>> samples_of(Task("worker", 0), b'{"worker 0": {"worker 1": 2.5}}')
    [Sample(name='waited_seconds_total', value=2.5, labels=('worker 1',))]
    """
    waits: Mapping[str, float] = json.loads(entry or b"{}").get(str(task), {})
    return [Sample("waited_seconds_total", seconds, (late,)) for late, seconds in waits.items()]


def waited_seconds(begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Returns for how long each worker waited for each other one, [waiting worker, late worker].

    >>> waited_seconds(np.array([[1.0, 5.0], [3.0, 4.5]]), np.array([[3.5, 5.5], [3.5, 5.5]]))
    array([[0. , 2. ],
           [0.5, 0. ]])

    Args:
      begins: when each worker has begun each exchange, [worker, exchange].
      ends: when the exchange has ended on each worker.
    """
    count = len(begins)
    if begins.shape[1] >= _FEWEST:
        # An exchange ends on all workers at about the same time, so that the times of its ends show
        # how much the clocks of different hosts differ.
        clocks = np.median(ends - ends[0], axis=1, keepdims=True)
        begins, ends = begins - clocks, ends - clocks
    late = begins.argmax(axis=0)
    waited = np.clip(np.minimum(begins.max(axis=0), ends) - begins, 0.0, None)
    return np.stack([waited[:, late == worker].sum(axis=1) for worker in range(count)], axis=1)


def read_exchanges(entry: bytes | None) -> np.ndarray | None:
    """Returns the exchanges in an entry of the workers' store; None if it has none.

    >>> read_exchanges(np.ones([2, COLUMNS]).tobytes()).shape, read_exchanges(b"other")
    ((2, 4), None)
    """
    values = np.zeros([0]) if not entry or len(entry) % 8 else np.frombuffer(entry)
    return values.reshape([-1, COLUMNS]) if values.size and not values.size % COLUMNS else None


def _by_key(exchanges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the exchanges of a worker in the order of their keys, and the keys."""
    whole = exchanges[:, : _NUMBER + 1].astype(np.int64)
    keys, first = np.unique(
        (whole[:, _STREAM] << _NUMBER_BITS) | whole[:, _NUMBER], return_index=True
    )
    return keys, exchanges[first]


def watch_waits(report: WaitReport) -> None:
    """Makes `end_epoch` log the lines of a report from now on."""
    _reports.append(report)


def end_epoch() -> None:
    """Logs which worker the others have waited for since the last call; on the first worker."""
    for report in _reports:
        line = report.end_epoch()
        if line:
            logging.warning("%s", line)
