"""Collectives that record the operation in which this worker waits, for a watchdog."""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from strategies.collectives.base import Collectives, RowCounts, StreamKeeper
from strategies.collectives.ordered_calls import record_calls
from strategies.compat.tensorflow import ResourceVariable
from strategies.diagnostics.waits import COLUMNS
from strategies.profiling.spans import EXCHANGE, SpanStream
from strategies.utils.devices import HOST
from tf_config.doctor.operation_trace import Operation

KEPT = 1024  # the number of the latest operations that are kept, a power of two


class GraphOperations:
    """The operations of one kind that functions run, which count and time themselves.

    The latest ones are kept in a variable. Python reads it while functions run: an operation writes
    its number, its times and the number of its name in one piece, when it has ended. This takes as
    few TensorFlow operations as possible, because each step runs them.

    Args:
      kind: the kind of the operations.
      in_step: whether steps wait for the operations.

    Attributes:
      names: the names of the operations that were traced.
    """

    def __init__(self, kind: str, in_step: bool = True):
        self.kind = kind
        self.in_step = in_step
        self.names: list[str] = []
        self._first: dict[float, float] = {}  # the first number of each name
        with tf.init_scope(), tf.device(HOST):
            self._begun, self._ended = (
                ResourceVariable(0, dtype=tf.int64, trainable=False) for _ in range(2)
            )
            self._latest = ResourceVariable(tf.zeros([KEPT, 4], tf.float64), trainable=False)

    def begin(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Counts an operation that begins; returns its number, int64, and the time, float64."""
        with tf.device(HOST):
            return self._begun.assign_add(1).read_value(), tf.timestamp()

    def end(self, number: tf.Tensor, begin: tf.Tensor, name: str) -> None:
        """Counts and records an operation that has ended.

        Args:
          number: the number of the operation.
          begin: when it began.
          name: the name of the operation.
        """
        with tf.device(HOST):
            self._ended.assign_add(1, read_value=False)
            of_name = tf.constant(float(len(self.names)), tf.float64)
            record = tf.stack([tf.cast(number, tf.float64), begin, tf.timestamp(), of_name])
            tf.raw_ops.ResourceScatterUpdate(
                resource=self._latest.handle,
                indices=tf.bitwise.bitwise_and(number, KEPT - 1),
                updates=record,
            )
        self.names.append(name)

    def counts(self) -> tuple[int, int]:
        """Returns how many operations have begun and ended."""
        return int(self._begun.numpy()), int(self._ended.numpy())

    def latest(self, stream: int) -> list[Operation]:
        """Returns the latest operations that have ended, and those that have not.

        Args:
          stream: the number of this stream of operations.
        """
        begun, ended = self.counts()
        recorded = [
            Operation(stream, int(number), self.names[int(name)], begin, end)
            for number, begin, end, name in self._latest.numpy().tolist()
            if number
        ]
        running = range(ended + 1, begun + 1)
        return [
            *(each for each in recorded if each.number not in running),
            *(Operation(stream, number, self.kind, None, None) for number in running),
        ]

    def exchanges(self) -> np.ndarray:
        """Returns the number, begin and end of the latest operations that have ended, [n, 3].

        The first one of each name is left out: workers come to it when they have traced its
        function, which may take one of them seconds longer than another.
        """
        rows = self._latest.numpy()
        rows = rows[rows[:, 0] > 0]
        rows = rows[rows[:, 0].argsort()]
        names, first = np.unique(rows[:, 3], return_index=True)
        for name, number in zip(names.tolist(), rows[first, 0].tolist(), strict=True):
            self._first.setdefault(name, number)
        firsts = np.array([self._first[name] for name in rows[:, 3].tolist()])
        return rows[rows[:, 0] > firsts, :3] if len(rows) else rows[:, :3]


class _Running(NamedTuple):
    """An operation that Python runs: its number, its name, and when it began."""

    number: int
    name: str
    begin: float


class OperationTracker:
    """Records the collective operations that this process has begun and ended.

    Eager operations are counted in Python, and so are calls of Python in functions. Other
    operations in functions count themselves in variables, because Python does not see them run.
    The latest operations are kept with their times.
    """

    def __init__(self) -> None:
        self._count = 0
        self._eager: dict[int, _Running] = {}
        self._steps = 0
        self._in_steps: dict[int, _Running] = {}
        self._graphs: list[GraphOperations] = []
        self._ended: collections.deque[Operation] = collections.deque(maxlen=KEPT)
        self._first_steps: dict[str, int] = {}  # the first number of each action of a step
        self._seen: tuple[Any, ...] = ()
        self._since = time.monotonic()

    @contextlib.contextmanager
    def track_eager(self, kind: str) -> Iterator[None]:
        """Records an eager operation while the block runs."""
        self._count += 1
        with self._track(self._eager, 0, self._count, kind):
            yield

    @contextlib.contextmanager
    def track_step(self, what: str) -> Iterator[None]:
        """Records an action of a step in Python while the block runs."""
        self._steps += 1
        self._first_steps.setdefault(what, self._steps)
        with self._track(self._in_steps, 1, self._steps, what):
            yield

    @contextlib.contextmanager
    def _track(
        self, running: dict[int, _Running], stream: int, number: int, name: str
    ) -> Iterator[None]:
        thread, begin = threading.get_ident(), time.time()
        running[thread] = _Running(number, name, begin)
        try:
            yield
        finally:
            running.pop(thread, None)
            self._ended.append(Operation(stream, number, name, begin, time.time()))

    def add_graph_operations(self, kind: str, in_step: bool) -> GraphOperations:
        """Returns the record of operations of a kind that functions will run.

        Args:
          kind: the kind of the operations.
          in_step: whether steps wait for them.
        """
        self._graphs.append(GraphOperations(kind, in_step))
        return self._graphs[-1]

    def begun(self) -> list[int]:
        """Returns how many eager operations, actions of steps, and operations of functions began.

        Functions are traced in the same order on all workers, and so are their counters.
        """
        return [self._count, self._steps, *(each.counts()[0] for each in self._graphs[:])]

    def pending(self) -> list[tuple[int, int]]:
        """Returns (index in `begun`, number) of each operation that has begun and not ended."""
        pending = [(0, each.number) for each in list(self._eager.values())]
        pending += [(1, each.number) for each in list(self._in_steps.values())]
        for index, graph in enumerate(self._graphs[:], 2):
            begun, ended = graph.counts()
            if begun > ended:
                pending.append((index, begun))
        return pending

    def latest(self) -> list[Operation]:
        """Returns the latest operations in the order of their begin, those that run at the end.

        Their streams are the indices in `begun`.
        """
        operations = list(self._ended)
        for stream, running in enumerate((self._eager, self._in_steps)):
            operations += [Operation(stream, *each, None) for each in list(running.values())]
        for stream, graph in enumerate(self._graphs[:], 2):
            operations += graph.latest(stream)
        operations.sort(key=lambda each: float("inf") if each.begin is None else each.begin)
        return operations[-KEPT:]

    def exchanges(self) -> np.ndarray:
        """Returns the latest operations that have ended and that steps have waited for.

        They have the columns of waits.py. Eager operations are left out, because workers may have
        much to do by themselves between them; and so is the first one of each name.
        """
        own = [
            (each.stream, each.number, each.begin, each.end)
            for each in list(self._ended)
            if each.stream == 1 and each.number > self._first_steps[each.name]
        ]
        tables = [np.array(own, np.float64).reshape([-1, COLUMNS])]
        for stream, graph in enumerate(self._graphs[:], 2):
            if graph.in_step:
                rows = graph.exchanges()
                tables.append(np.insert(rows, 0, stream, axis=1))
        return np.concatenate(tables)

    def waiting(self) -> tuple[str, str, float]:
        """Returns the kind ("eager", "function" or ""), name and seconds of this worker's wait."""
        counts = [(graph.kind, *graph.counts()) for graph in list(self._graphs)]
        eager, in_steps = sorted(self._eager.values()), sorted(self._in_steps.values())
        seen = (tuple(eager), tuple(counts), self._steps, tuple(in_steps))
        now = time.monotonic()
        if seen != self._seen:
            self._seen, self._since = seen, now
        if eager:
            return "eager", f"{eager[0].name} number {eager[0].number}", now - self._since
        running = [each.name for each in in_steps]
        running += [kind for kind, begun, ended in counts if begun > ended]
        return ("function", running[0], now - self._since) if running else ("", "", 0.0)


class WatchedCollectives(StreamKeeper):
    """Collectives whose operations are recorded by an `OperationTracker`; see `Collectives`.

    Args:
      collectives: the collectives that run the operations.
      operations: the tracker that records them.
      is_measured: whether steps wait for the operations, so that their duration is measured.
    """

    def __init__(
        self, collectives: Collectives, operations: OperationTracker, is_measured: bool = True
    ):
        super().__init__()
        self.rank = collectives.rank
        self.size = collectives.size
        self._collectives = collectives
        self._operations = operations
        self._graph_operations: dict[str, GraphOperations] = {}
        self._in_step = is_measured
        self._calls_python = isinstance(collectives, StreamKeeper) and collectives.calls_python
        self._spans = SpanStream(EXCHANGE, is_common=True, is_measured=is_measured)

    def _make_stream(self) -> WatchedCollectives:
        # Not measured, because its time is already part of the step's wait for input.
        stream = self._collectives.new_stream()
        return WatchedCollectives(stream, self._operations, is_measured=False)

    def all_reduce(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the sums over all workers; see `Collectives`."""
        return self._run("all_reduce", self._collectives.all_reduce, list(tensors))

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the workers' tensors concatenated along axis 0; see `Collectives`."""
        return self._run("all_gather", self._collectives.all_gather, tensor)

    def broadcast(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the first worker's tensor; see `Collectives`."""
        return self._run("broadcast", self._collectives.broadcast, tensor)

    def all_to_all(
        self, tensor: tf.Tensor, counts: tf.Tensor, known: RowCounts | None = None
    ) -> tuple[tf.Tensor, RowCounts]:
        """Returns the rows that the workers sent to this one; see `Collectives`."""
        arguments = [tensor, counts] if known is None else [tensor, counts, known]
        return self._run("all_to_all", self._collectives.all_to_all, *arguments)

    def _run(self, kind: str, operation: Callable[..., Any], *arguments: Any) -> Any:
        if tf.executing_eagerly():
            with self._operations.track_eager(kind):
                return self._spans.measure(kind, lambda: operation(*arguments))
        if self._in_step and self._calls_python:
            return self._run_calls(kind, operation, arguments)
        if kind not in self._graph_operations:
            self._graph_operations[kind] = self._operations.add_graph_operations(
                kind, self._in_step
            )
        record = self._graph_operations[kind]
        arguments = tf.nest.map_structure(tf.convert_to_tensor, arguments)
        # Counted after the arguments are computed and before the operation starts, so that a worker
        # that is still computing them has not begun, and one that has sent its part has.
        with tf.control_dependencies(tf.nest.flatten(arguments)):
            number, begin = record.begin()
        with tf.control_dependencies([number, begin]):
            arguments = tf.nest.map_structure(tf.identity, arguments)
            name = _name(kind, arguments)
            result = self._spans.measure(name, lambda: operation(*arguments))
        with tf.control_dependencies(tf.nest.flatten(result)):
            record.end(number, begin, name)
        return result

    def _run_calls(self, kind: str, operation: Callable[..., Any], arguments: Any) -> Any:
        """Adds an operation that consists of calls of Python, in which each call is recorded."""
        arguments = tf.nest.map_structure(tf.convert_to_tensor, arguments)
        name = _name(kind, arguments)
        with record_calls(lambda: self._operations.track_step(name)):
            return self._spans.measure(name, lambda: operation(*arguments))


def _name(kind: str, arguments: Any) -> str:
    return f"{kind}{_size(tf.nest.flatten(arguments[0]))}"


def _size(tensors: Sequence[tf.Tensor]) -> str:
    """Returns the suffix of an operation's name with the size of tensors; "" if it is unknown."""
    elements = [tensor.shape.num_elements() for tensor in tensors]
    if None in elements:
        return ""
    sizes = [tensor.dtype.size for tensor in tensors]
    return f" of {sum(map(int.__mul__, elements, sizes))} bytes"
