"""Spans of time in which this worker waited for input or exchanged values, for step timelines.

Functions are measured by operations in their graphs, because Python does not see them run: the
clock is read when an operation's inputs are ready, and again when its results are. This works with
every back end of communication, but shows nothing of what happens inside it. Times are those of the
wall clock, the only clock that workers have in common.
"""

from __future__ import annotations

import collections
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import tensorflow as tf

from strategies.compat.tensorflow import ResourceVariable
from strategies.utils.devices import HOST

INPUT, EXCHANGE, BACKGROUND = "input", "exchange", "background"
_KEPT = 1 << 16  # the number of newest spans kept per stream
_T = TypeVar("_T")
Period = tuple[float, float]

_streams: list[SpanStream] = []
_models: weakref.WeakSet[Any] = weakref.WeakSet()  # whose steps are measured
_lock = threading.Lock()
_is_on = False


class Span(NamedTuple):
    """A span of time.

    Attributes:
      name: the name of the operation.
      begin: the begin, in seconds of the wall clock.
      end: the end, in seconds of the wall clock.
    """

    name: str
    begin: float
    end: float


class SpanStream:
    """The spans of operations that all workers begin in the same order, or of one worker's own.

    Nothing is recorded before the first call of `record_spans`.

    Args:
      kind: `INPUT`, `EXCHANGE`, or `BACKGROUND` for exchanges that no step waits for.
      is_common: whether all workers run the same operations and wait for one another.
      is_measured: whether spans are recorded.
    """

    def __init__(self, kind: str, is_common: bool = False, is_measured: bool = True):
        self.kind = kind
        self.is_common = is_common
        self._is_measured = is_measured
        self._names: list[str] = []
        self._spans: collections.deque[Span] = collections.deque(maxlen=_KEPT)
        self._is_cut = False
        self._ring: tuple[ResourceVariable, ResourceVariable] | None = None
        if is_measured:
            with _lock:
                _streams.append(self)

    def measure(self, name: str, run: Callable[[], _T]) -> _T:
        """Returns the result of `run`, and records when it began and ended.

        >>> SpanStream(INPUT).measure("sum", lambda: int(tf.constant(1) + 2))
        3

        Args:
          name: the name of the span.
          run: creates operations, in a function's graph or eagerly.
        """
        if _is_on and self._is_measured and not tf.executing_eagerly():
            return self._measure_in_graph(name, run)
        return self.measure_call(name, run)

    def measure_call(self, name: str, call: Callable[[], _T]) -> _T:
        """Returns the result of a Python function, and records when it began and ended."""
        begin = time.time()
        result = call()
        if _is_on and self._is_measured:
            self._is_cut = self._is_cut or len(self._spans) == _KEPT
            self._spans.append(Span(name, begin, time.time()))
        return result

    def _measure_in_graph(self, name: str, run: Callable[[], _T]) -> _T:
        begin = _now()
        with tf.control_dependencies([begin]):
            result = run()
        with tf.control_dependencies(tf.nest.flatten(result, expand_composites=True)):
            end = _now()
        count, rows = self._graph_ring()
        with tf.device(HOST):
            place = (count.assign_add(1).read_value() - 1) % _KEPT
            row = tf.stack([tf.constant(float(len(self._names)), tf.float64), begin, end])
            rows.scatter_nd_update([[place]], [row])
        self._names.append(name)
        # Consumers of the result wait until the clock is read, or it might be read much later.
        with tf.control_dependencies([end]):
            return tf.nest.map_structure(tf.identity, result, expand_composites=True)

    def _graph_ring(self) -> tuple[ResourceVariable, ResourceVariable]:
        """Returns variables for the number of spans recorded in functions, and for the latest."""
        if self._ring is None:
            with tf.init_scope(), tf.device(HOST):
                count = ResourceVariable(0, dtype=tf.int64, trainable=False)
                rows = ResourceVariable(tf.zeros([_KEPT, 3], tf.float64), trainable=False)
            self._ring = count, rows
        return self._ring

    def since(self, start: float) -> tuple[list[Span], float]:
        """Returns the spans that ended after `start`, and a time after which none is missing."""
        spans = [span for span in list(self._spans) if span.end > start]
        complete = self._spans[0].end if self._is_cut else start
        if self._ring is not None:
            count, rows = (variable.numpy() for variable in self._ring)
            rows = rows[:count]
            complete = max(complete, rows[:, 2].min() if count > _KEPT else start)
            late = rows[rows[:, 2] > start]
            spans += [Span(self._names[int(number)], *times) for number, *times in late.tolist()]
        return sorted(spans, key=lambda span: span.begin), float(max(complete, start))


class Recorded(NamedTuple):
    """The recorded spans of one stream.

    Attributes:
      kind: the stream's kind.
      is_common: whether the stream is common to all workers.
      spans: the spans in the order of their begin.
    """

    kind: str
    is_common: bool
    spans: list[Span]


def record_spans() -> None:
    """Starts recording spans, including those in functions that are traced from now on."""
    global _is_on
    _is_on = True


def measure_steps(model: Any) -> None:
    """Makes a model's training steps record spans; steps traced without them are retraced.

    Args:
      model: a model of Keras 3 or tf_keras, before `fit` makes its train function.
    """
    record_spans()  # never turned off: all steps traced from now on are measured
    if model not in _models:
        _models.add(model)
        model.train_function = None


def read_spans(start: float) -> tuple[list[Recorded], float]:
    """Returns the spans of all streams after `start`, and a time after which none is missing."""
    recorded, complete = [], start
    for stream in tuple(_streams):
        spans, stream_complete = stream.since(start)
        recorded.append(Recorded(stream.kind, stream.is_common, spans))
        complete = max(complete, stream_complete)
    return recorded, complete


def covered_seconds(spans: Iterable[Span], periods: Sequence[Period]) -> float:
    """Returns the number of seconds of `periods` that spans cover, overlaps counted once.

    >>> covered_seconds([Span("a", 0, 2), Span("b", 1, 3), Span("c", 5, 9)], [(0, 6)])
    4.0
    """
    return float(sum(end - begin for begin, end in common(union(spans), periods)))


def union(spans: Iterable[Span]) -> list[Period]:
    """Returns the periods that spans cover, in order.

    >>> union([Span("a", 0, 2), Span("b", 1, 3), Span("c", 5, 9)])
    [(0, 3), (5, 9)]
    """
    parts: list[Period] = []
    for begin, end in sorted((span.begin, span.end) for span in spans):
        if parts and begin <= parts[-1][1]:
            parts[-1] = parts[-1][0], max(parts[-1][1], end)
        else:
            parts.append((begin, end))
    return parts


def common(first: Sequence[Period], second: Sequence[Period]) -> list[Period]:
    """Returns the periods that two lists of periods have in common; both lists are in order.

    >>> common([(0, 3), (5, 9)], [(1, 6), (8, 10)])
    [(1, 3), (5, 6), (8, 9)]
    """
    parts, n, m = [], 0, 0
    while n < len(first) and m < len(second):
        begin = max(first[n][0], second[m][0])
        end = min(first[n][1], second[m][1])
        if begin < end:
            parts.append((begin, end))
        if first[n][1] < second[m][1]:
            n += 1
        else:
            m += 1
    return parts


def _now() -> Any:
    with tf.device(HOST):
        return tf.timestamp()
