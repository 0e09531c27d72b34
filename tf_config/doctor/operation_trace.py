"""The last operations of each worker, as it has written them, and the first one that differs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from tf_config.cluster import Task
from tf_config.errors import ClusterConfigError, quoted

_FILE, _FILES = "operations-{}.json", "operations-*.json"
# Workers begin an operation at different times. One that began it on another worker less than this
# time before this worker's file was written may just not have come to it yet.
_LAG_SECONDS = 1.0
_SIZE = " of "  # in the name of an operation, before the size


class Operation(NamedTuple):
    """A collective operation of a worker.

    Attributes:
      stream: the number of the stream of operations, which all workers begin in the same order.
      number: the number of the operation in its stream, from 1.
      name: the name of the operation, with the size of what is exchanged if it is known.
      begin: when it began, in seconds of the wall clock; None if unknown.
      end: when it ended; None if it has not.
    """

    stream: int
    number: int
    name: str
    begin: float | None
    end: float | None


@dataclass(frozen=True)
class OperationTrace:
    """The last operations of one worker.

    Attributes:
      task: the type and the index of the worker's task.
      time: when they were written, in seconds of the wall clock.
      reason: why they were written.
      place: the running Keras call and the line of the user's program at that time.
      begun: how many operations of each stream had begun.
      operations: the last operations, by their begin.
    """

    task: tuple[str, int]
    time: float
    reason: str
    place: str
    begun: Sequence[int]
    operations: Sequence[Operation] = field(default_factory=tuple)

    @property
    def worker(self) -> str:
        """The name of the task."""
        return str(Task(*self.task))

    def path(self, directory: Path) -> Path:
        """Returns the path of this worker's file in a directory."""
        return directory / _FILE.format(Task(*self.task).label)

    def to_json(self) -> str:
        """Returns the trace as JSON, which `read` reads."""
        return json.dumps(asdict(self))

    def find(self, stream: int, number: int) -> Operation | None:
        """Returns an operation; None if it is not recorded."""
        wanted = stream, number
        return next((each for each in self.operations if each[:2] == wanted), None)


def read(directory: Path) -> list[OperationTrace]:
    """Returns the traces in a directory, by task.

    Raises:
      ClusterConfigError: if there are fewer than two, or one is damaged.
    """
    try:
        paths = sorted(directory.glob(_FILES))
        if not directory.is_dir():
            paths = []
        traces = [_trace(path) for path in paths]
    except OSError as error:
        raise ClusterConfigError(
            f"--trace must name a directory that can be read. Received: {quoted(str(directory))} "
            f"({error.strerror}). Correct the path."
        ) from None
    if len(traces) < 2:
        raise ClusterConfigError(
            "--trace must name a directory with the files of two workers or more, "
            f"{_FILE.format('worker-0')} and so on. Received: {quoted(str(directory))}, with "
            f"{len(traces)}. Copy the files of all workers there."
        )
    return sorted(traces, key=lambda trace: trace.task)


def _trace(path: Path) -> OperationTrace:
    try:
        values = json.loads(path.read_text())
        values["task"] = tuple(values["task"])
        values["operations"] = [Operation(*each) for each in values["operations"]]
        trace = OperationTrace(**values)
        # These raise an error if a value has another type.
        _ = trace.worker, [n + 1 for n in trace.begun], trace.time + 1
        _ = [each.stream + each.number for each in trace.operations]
    except (TypeError, ValueError, KeyError) as error:
        raise ClusterConfigError(
            "A trace must be a file that a worker has written. Received: "
            f"{quoted(str(path))} ({quoted(str(error), 80)}). Remove it, or write it again."
        ) from None
    return trace


class Difference(NamedTuple):
    """An operation that workers have begun differently.

    Attributes:
      number: its number.
      operations: the operation of each worker by the worker's name; None of a worker that has not
        begun it.
    """

    number: int
    operations: Mapping[str, Operation | None]

    @property
    def begin(self) -> float:
        """When the first worker began it."""
        begins = (each.begin for each in self.operations.values() if each is not None)
        return min((begin for begin in begins if begin is not None), default=float("inf"))


def first_difference(traces: Sequence[OperationTrace]) -> Difference | None:
    """Returns the first operation that workers have begun differently; None if there is none.

    >>> first, second = (
    ...     OperationTrace(("worker", n), 9.0, "", "", [2], [Operation(0, 2, name, 1.0, None)])
    ...     for n, name in enumerate(["broadcast", "all_gather"])
    ... )
    >>> first_difference([first, second]).number
    2
    >>> first_difference([first, first]) is None
    True
    """
    streams = range(max(len(trace.begun) for trace in traces))
    differences = [_first_in(traces, stream) for stream in streams]
    return min(filter(None, differences), key=lambda each: each.begin, default=None)


def _first_in(traces: Sequence[OperationTrace], stream: int) -> Difference | None:
    by_number = [
        {each.number: each for each in trace.operations if each.stream == stream}
        for trace in traces
    ]
    # Before the oldest operation of a worker, it is unknown what it did.
    recorded = [min(each) for each in by_number if each]
    if not recorded:
        return None
    for number in range(max(recorded), max(max(each) for each in by_number if each) + 1):
        found = [each.get(number) for each in by_number]
        begin = min(
            (each.begin for each in found if each is not None and each.begin is not None),
            default=None,
        )
        names = {each.name for each in found if each is not None}
        # The size of an operation in a graph is recorded when it has ended.
        if any(_SIZE not in name for name in names):
            names = {name.partition(_SIZE)[0] for name in names}
        is_missing = any(
            each is None and _is_missing(trace, stream, number, begin)
            for trace, each in zip(traces, found, strict=True)
        )
        if len(names) > 1 or is_missing:
            workers = [trace.worker for trace in traces]
            return Difference(number, dict(zip(workers, found, strict=True)))
    return None


def _is_missing(trace: OperationTrace, stream: int, number: int, begin: float | None) -> bool:
    """Returns whether a worker had not begun an operation long after others had."""
    begun = trace.begun[stream] if stream < len(trace.begun) else 0
    return begun < number and begin is not None and trace.time - begin >= _LAG_SECONDS


def describe(traces: Sequence[OperationTrace]) -> Iterable[str]:
    """Returns the lines that show the first difference between workers, and where they were."""
    difference = first_difference(traces)
    if difference is None:
        yield f"no difference in the last operations of {len(traces)} workers"
    else:
        yield f"the first difference is operation {difference.number}:"
        for trace in traces:
            yield f"  {trace.worker}: {_describe(trace, difference.operations[trace.worker])}"
    yield "when the files were written:"
    for trace in traces:
        place = trace.place or "an unknown line"
        yield f"  {trace.worker}, at {_time(trace.time)}, in {place}"


def _describe(trace: OperationTrace, operation: Operation | None) -> str:
    if operation is not None:
        begin = "" if operation.begin is None else f", begun at {_time(operation.begin)}"
        end = "not ended" if operation.end is None else f"ended at {_time(operation.end)}"
        return f"{operation.name}{begin}, {end}"
    if not trace.operations:
        return "has not begun it, nor any other"
    last = trace.operations[-1]
    begin = "" if last.begin is None else f", begun at {_time(last.begin)}"
    return f"has not begun it; its last one is {last.name} number {last.number}{begin}"


def _time(seconds: float) -> str:
    whole = time.strftime("%H:%M:%S", time.localtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}"
