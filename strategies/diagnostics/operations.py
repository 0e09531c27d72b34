"""Collectives that record the operation in which this worker waits, for a watchdog."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from strategies.collectives.base import Collectives, StreamKeeper
from strategies.compat.tensorflow import ResourceVariable
from strategies.profiling.spans import EXCHANGE, SpanStream
from strategies.utils.devices import HOST


class OperationTracker:
    """Records the collective operations that this process has begun and ended.

    Eager operations are counted in Python. Operations in functions count themselves in two
    variables, because Python does not see them run.
    """

    def __init__(self) -> None:
        self._count = 0
        self._eager: dict[int, tuple[int, str]] = {}
        self._steps = 0
        self._in_steps: dict[int, tuple[int, str]] = {}
        self._graphs: list[tuple[str, ResourceVariable, ResourceVariable]] = []
        self._seen: tuple[Any, ...] = ()
        self._since = time.monotonic()

    @contextlib.contextmanager
    def track_eager(self, kind: str) -> Iterator[None]:
        """Records an eager operation while the block runs."""
        self._count += 1
        thread = threading.get_ident()
        self._eager[thread] = (self._count, kind)
        try:
            yield
        finally:
            self._eager.pop(thread, None)

    @contextlib.contextmanager
    def track_step(self, what: str) -> Iterator[None]:
        """Records an action of a step in Python while the block runs."""
        self._steps += 1
        thread = threading.get_ident()
        self._in_steps[thread] = (self._steps, what)
        try:
            yield
        finally:
            self._in_steps.pop(thread, None)

    def add_counters(self, kind: str) -> tuple[ResourceVariable, ResourceVariable]:
        """Creates counters of the operations of a kind that functions have begun and ended."""
        with tf.init_scope(), tf.device(HOST):
            begun, ended = (ResourceVariable(0, dtype=tf.int64, trainable=False) for _ in range(2))
        self._graphs.append((kind, begun, ended))
        return begun, ended

    def begun(self) -> list[int]:
        """Returns how many eager operations, actions of steps, and operations of functions began.

        Functions are traced in the same order on all workers, and so are their counters.
        """
        return [self._count, self._steps, *(int(begun.numpy()) for _, begun, _ in self._graphs[:])]

    def pending(self) -> list[tuple[int, int]]:
        """Returns (index in `begun`, number) of each operation that has begun and not ended."""
        pending = [(0, number) for number, _ in list(self._eager.values())]
        pending += [(1, number) for number, _ in list(self._in_steps.values())]
        for index, (_, begun, ended) in enumerate(self._graphs[:], 2):
            number = int(begun.numpy())
            if number > int(ended.numpy()):
                pending.append((index, number))
        return pending

    def waiting(self) -> tuple[str, str, float]:
        """Returns the kind ("eager", "function" or ""), name and seconds of this worker's wait."""
        counts = [
            (kind, int(begun.numpy()), int(ended.numpy()))
            for kind, begun, ended in list(self._graphs)
        ]
        eager, in_steps = sorted(self._eager.values()), sorted(self._in_steps.values())
        seen = (tuple(eager), tuple(counts), self._steps, tuple(in_steps))
        now = time.monotonic()
        if seen != self._seen:
            self._seen, self._since = seen, now
        if eager:
            return "eager", f"{eager[0][1]} number {eager[0][0]}", now - self._since
        running = [what for _, what in in_steps]
        running += [kind for kind, begun, ended in counts if begun > ended]
        return ("function", running[0], now - self._since) if running else ("", "", 0.0)


class WatchedCollectives(StreamKeeper):
    """Collectives whose operations are recorded by an `OperationTracker`; see `Collectives`.

    Args:
      collectives: the collectives that run the operations.
      operations: the tracker that records them.
      is_measured: whether the duration of operations is recorded, too.
    """

    def __init__(
        self, collectives: Collectives, operations: OperationTracker, is_measured: bool = True
    ):
        super().__init__()
        self.rank = collectives.rank
        self.size = collectives.size
        self._collectives = collectives
        self._operations = operations
        self._counters: dict[str, tuple[ResourceVariable, ResourceVariable]] = {}
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

    def all_to_all(self, tensor: tf.Tensor, counts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the rows that the workers sent to this one; see `Collectives`."""
        return self._run("all_to_all", self._collectives.all_to_all, tensor, counts)

    def _run(self, kind: str, operation: Callable[..., Any], *arguments: Any) -> Any:
        if tf.executing_eagerly():
            with self._operations.track_eager(kind):
                return self._spans.measure(kind, lambda: operation(*arguments))
        if kind not in self._counters:
            self._counters[kind] = self._operations.add_counters(kind)
        begun, ended = self._counters[kind]
        arguments = tf.nest.map_structure(tf.convert_to_tensor, arguments)
        # Counted after the arguments are computed and before the operation starts, so that a worker
        # that is still computing them has not begun, and one that has sent its part has.
        with tf.control_dependencies(tf.nest.flatten(arguments)):
            counted = begun.assign_add(1, read_value=False)
        with tf.control_dependencies([counted]):
            arguments = tf.nest.map_structure(tf.identity, arguments)
            name = f"{kind}{_size(tf.nest.flatten(arguments[0]))}"
            result = self._spans.measure(name, lambda: operation(*arguments))
        with tf.control_dependencies(tf.nest.flatten(result)):
            ended.assign_add(1, read_value=False)
        return result


def _size(tensors: Sequence[tf.Tensor]) -> str:
    """Returns the suffix of an operation's name with the size of tensors; "" if it is unknown."""
    elements = [tensor.shape.num_elements() for tensor in tensors]
    if None in elements:
        return ""
    sizes = [tensor.dtype.size for tensor in tensors]
    return f" of {sum(map(int.__mul__, elements, sizes))} bytes"
