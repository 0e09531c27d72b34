"""The steps of all workers in the Chrome trace-event format, one process per worker."""

from __future__ import annotations

import gzip
import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from strategies.files.atomic_files import write_file
from strategies.profiling.spans import (
    BACKGROUND,
    EXCHANGE,
    INPUT,
    Recorded,
    Span,
    common,
    covered_seconds,
    union,
)


@dataclass
class WorkerSteps:
    """The record of one worker.

    Attributes:
      rank: the rank of the worker.
      name: the names of the worker and its host.
      steps: one span for each call of Keras's train function.
      streams: the spans of each stream of the worker, in the order in which streams were created.
    """

    rank: int
    name: str
    steps: list[Span]
    streams: list[Recorded] = field(default_factory=list)

    def to_json(self) -> bytes:
        """Returns the record as JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> WorkerSteps:
        """Returns the record from the JSON of `to_json`."""
        values = json.loads(text)
        values["steps"] = [Span(*span) for span in values["steps"]]
        values["streams"] = [
            Recorded(kind, is_common, [Span(*span) for span in spans])
            for kind, is_common, spans in values["streams"]
        ]
        return cls(**values)

    def spans(self, kind: str) -> list[Span]:
        """Returns the spans of one kind, sorted by their start."""
        found = (span for stream in self.streams if stream.kind == kind for span in stream.spans)
        return sorted(found, key=lambda span: span.begin)


def trace(workers: Sequence[WorkerSteps], notes: Sequence[str]) -> dict[str, Any]:
    """Returns the trace of all workers, for `json.dump`.

    Args:
      workers: the records of all workers, by rank.
      notes: remarks for the reader of the trace.
    """
    zero = min((step.begin for worker in workers for step in worker.steps), default=0.0)
    waits = waits_of(workers)
    events = [event for worker in workers for event in _events(worker, waits[worker.rank], zero)]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "begin": zero,
            "notes": list(notes),
            "seconds": {worker.name: seconds_of(worker, waits[worker.rank]) for worker in workers},
        },
    }


def write(path: str | os.PathLike[str], content: Mapping[str, Any]) -> None:
    """Writes a trace atomically; compresses it if the file name ends in .gz."""
    target = Path(path)
    data = json.dumps(content).encode()
    target.parent.mkdir(parents=True, exist_ok=True)
    write_file(target, gzip.compress(data) if target.suffix == ".gz" else data)


def waits_of(workers: Sequence[WorkerSteps]) -> dict[int, list[Span]]:
    """Returns, by rank, the spans in which a worker waited for the last one to join an exchange.

    The n-th span of a name in a stream is the same exchange on every worker. If workers recorded
    different numbers of spans of a name, these exchanges are omitted.

    >>> early, late = ([Span("sum", begin, 5.0)] for begin in (1.0, 4.0))
    >>> both = [WorkerSteps(rank, str(rank), [], [Recorded(EXCHANGE, True, spans)])
    ...         for rank, spans in enumerate([early, late])]
    >>> waits_of(both)[0]
    [Span(name='waiting for 1', begin=1.0, end=4.0)]
    >>> waits_of(both)[1]
    []
    """
    waits: dict[int, list[Span]] = {worker.rank: [] for worker in workers}
    for streams in zip(*(worker.streams for worker in workers), strict=False):
        if all(stream.is_common for stream in streams):
            by_name = [_by_name(stream.spans) for stream in streams]
            for name in by_name[0]:
                for together in _pair_spans([each.get(name, []) for each in by_name]):
                    last = max(range(len(workers)), key=lambda n: together[n].begin)
                    for worker, span in zip(workers, together, strict=True):
                        end = min(together[last].begin, span.end)
                        if end > span.begin:
                            text = f"waiting for {workers[last].name}"
                            waits[worker.rank].append(Span(text, span.begin, end))
    return waits


def _by_name(spans: Sequence[Span]) -> dict[str, list[Span]]:
    by_name: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        by_name[span.name].append(span)
    return by_name


def _pair_spans(spans: Sequence[Sequence[Span]]) -> Iterator[tuple[Span, ...]]:
    return zip(*spans, strict=True) if len(set(map(len, spans))) == 1 else iter(())


def seconds_of(worker: WorkerSteps, waits: Sequence[Span]) -> dict[str, float]:
    """Returns the seconds that a worker's steps spent on each activity.

    >>> worker = WorkerSteps(0, "0", [Span("step 0", 0.0, 10.0)],
    ...     [Recorded(INPUT, False, [Span("next batch", 0.0, 1.0)]),
    ...      Recorded(EXCHANGE, True, [Span("sum", 6.0, 9.0)])])
    >>> seconds_of(worker, [Span("waiting", 6.0, 8.0)])
    {'steps': 10.0, 'input': 1.0, 'compute': 6.0, 'communication': 1.0, 'waiting': 2.0}
    """
    steps = [(step.begin, step.end) for step in worker.steps]
    waiting = covered_seconds(waits, steps)
    result = {
        "steps": sum(end - begin for begin, end in steps),
        "input": covered_seconds(worker.spans(INPUT), steps),
        "compute": sum(span.end - span.begin for span in compute_of(worker)),
        "communication": max(covered_seconds(worker.spans(EXCHANGE), steps) - waiting, 0.0),
        "waiting": waiting,
    }
    return {name: round(value, 6) for name, value in result.items()}


def compute_of(worker: WorkerSteps) -> list[Span]:
    """Returns the parts of the steps without waiting for input and without exchanges."""
    taken = union([*worker.spans(INPUT), *worker.spans(EXCHANGE)])
    edges = [float("-inf"), *(edge for part in taken for edge in part), float("inf")]
    free = list(zip(edges[::2], edges[1::2], strict=True))
    steps = [(step.begin, step.end) for step in worker.steps]
    return [Span("compute", *part) for part in common(steps, free)]


def _events(worker: WorkerSteps, waits: Sequence[Span], zero: float) -> Iterator[dict[str, Any]]:
    tracks = [
        ("steps", worker.steps),
        *_assign_lanes("input", worker.spans(INPUT)),
        ("compute", compute_of(worker)),
        *_assign_lanes("communication", worker.spans(EXCHANGE)),
        *_assign_lanes("waiting", waits),
        *_assign_lanes("in the background", worker.spans(BACKGROUND)),
    ]
    # Numbers start at 1: viewers take process 0 and thread 0 for the idle ones.
    process = {"ph": "M", "pid": 1 + worker.rank}
    yield {**process, "name": "process_name", "args": {"name": worker.name}}
    yield {**process, "name": "process_sort_index", "args": {"sort_index": worker.rank}}
    for number, (name, spans) in enumerate(tracks, 1):
        thread = {**process, "tid": number}
        yield {**thread, "name": "thread_name", "args": {"name": name}}
        yield {**thread, "name": "thread_sort_index", "args": {"sort_index": number}}
        for span in spans:
            micros = round((span.begin - zero) * 1e6, 1), round((span.end - span.begin) * 1e6, 1)
            yield {**thread, "ph": "X", "name": span.name, "ts": micros[0], "dur": micros[1]}


def _assign_lanes(name: str, spans: Sequence[Span]) -> list[tuple[str, list[Span]]]:
    """Assigns spans to numbered tracks, so that no two spans of a track overlap.

    >>> _assign_lanes("sums", [Span("a", 0, 2), Span("b", 1, 3), Span("c", 2, 4)])[1]
    ('sums 2', [Span(name='b', begin=1, end=3)])
    """
    tracks: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: span.begin):
        track = next((track for track in tracks if track[-1].end <= span.begin), None)
        if track is None:
            tracks.append([span])
        else:
            track.append(span)
    return [(f"{name} {n + 1}" if n else name, track) for n, track in enumerate(tracks)]
