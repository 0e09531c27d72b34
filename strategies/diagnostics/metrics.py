"""The numbers of this process that the launcher shows on its page of metrics.

What has numbers registers itself as a source, and is read twice a second by the thread that reports
this process's progress. Nothing is counted unless `tf-config` serves the page.
"""

from __future__ import annotations

import collections
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tf_config.launcher.progress_file import Report, Sample
from tf_config.launcher.settings import METRICS_VARIABLE

_RATE_SECONDS = 10.0
_STEPS, _EXAMPLES = "steps_total", "samples_total"

_Read = Callable[[Any], Iterable[Sample]]
# Weak, so that a deleted layer or strategy is freed.
_sources: weakref.WeakKeyDictionary[Any, _Read] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def are_reported(environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether a page of metrics shows the numbers of this process.

    >>> are_reported({"KERAS_STRATEGIES_METRICS": "1"}), are_reported({})
    (True, False)
    """
    return METRICS_VARIABLE in environ


def add_source(owner: Any, read: _Read) -> None:
    """Adds a source of numbers; does nothing unless they are reported.

    Args:
      owner: what the numbers are about. It is a source until it is deleted.
      read: a function of `owner` that returns its numbers; called in a thread of its own.
    """
    if are_reported():
        with _lock:
            _sources[owner] = read


def samples_of_all() -> list[Sample]:
    """Returns the numbers of all sources; those with the same name and labels are added."""
    with _lock:
        sources = list(_sources.items())
    totals: dict[tuple[str, tuple[str, ...]], float] = collections.defaultdict(float)
    for owner, read in sources:
        for sample in read(owner):
            totals[sample.name, sample.labels] += sample.value
    return [Sample(name, value, labels) for (name, labels), value in totals.items()]


class Reporter:
    """Makes the reports of this process, with its speed over the last seconds.

    Args:
      clock: returns the time in seconds; it must not go backwards.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        # (time, steps, examples); the first one is the newest that is older than _RATE_SECONDS.
        self._history: collections.deque[tuple[float, float, float]] = collections.deque()

    def report(self) -> Report:
        """Returns the numbers of this process."""
        samples = samples_of_all()
        by_name = {sample.name: sample.value for sample in samples}
        if _STEPS in by_name:
            samples += self._speed(by_name[_STEPS], by_name[_EXAMPLES])
        return Report(time.time(), samples)

    def _speed(self, steps: float, examples: float) -> list[Sample]:
        now = self._clock()
        self._history.append((now, steps, examples))
        while len(self._history) > 2 and self._history[1][0] <= now - _RATE_SECONDS:
            self._history.popleft()
        since, first_steps, first_examples = self._history[0]
        seconds, taken = now - since, steps - first_steps
        if not seconds:
            return []
        speed = [Sample("samples_per_second", (examples - first_examples) / seconds)]
        return [*speed, *([Sample("step_seconds", seconds / taken)] if taken else [])]
