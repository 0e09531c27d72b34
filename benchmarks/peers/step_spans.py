"""The parts of training steps, as TensorFlow's profiler saw them."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import NamedTuple

from tensorflow.tsl.profiler.protobuf import xplane_pb2

# The first pattern that an operation's name matches tells which part of a step it belongs to.
PARTS = {
    "update": r"adam/",
    "backward pass": r"gradient_tape|Grad",
    "forward pass": r"sequential|sparse_categorical|loss",
    "other operations": r"",
}
IDLE, BETWEEN, EXCHANGE = "no operation", "between two steps", "exchange"


class Event(NamedTuple):
    """What a thread did, in milliseconds; an operation of a graph has its name and its type."""

    name: str
    thread: str
    begin: float
    end: float


class Span(NamedTuple):
    """A part of a step, in milliseconds from the step's beginning."""

    part: str
    begin: float
    end: float


def events_of(directory: str) -> list[Event]:
    """Returns what was profiled, in the order of time."""
    (path,) = Path(directory).glob("plugins/profile/*/*.xplane.pb")
    space = xplane_pb2.XSpace.FromString(path.read_bytes())
    (plane,) = (plane for plane in space.planes if plane.name == "/host:CPU")
    events = []
    for line in plane.lines:
        for event in line.events:
            begin = line.timestamp_ns / 1e6 + event.offset_ps / 1e9
            name = plane.event_metadata[event.metadata_id].name
            thread = f"{line.name}, {line.id}"
            events.append(Event(name, thread, begin, begin + event.duration_ps / 1e9))
    return sorted(events, key=lambda event: event.begin)


def exchanges_of(events: list[Event]) -> list[Span]:
    """Returns when values were exchanged with the other worker.

    In shared memory, while a Python function runs as an operation; in earlier versions, from when a
    thread has taken values from a queue until it puts results into one. By Horovod, from when its
    operation starts until another thread of Python's is done.
    """
    spans, taken, started = [], {}, 0.0
    threads_of_queues = {event.thread for event in events if "QueueDequeueV2" in event.name}
    for event in events:
        if _is_call(event):
            spans.append(Span(EXCHANGE, event.begin, event.end))
        elif event.name == "EagerLocalExecute: QueueDequeueV2":
            taken[event.thread] = event.end
        elif event.name == "EagerLocalExecute: QueueEnqueueV2":
            spans.append(Span(EXCHANGE, taken.get(event.thread, event.begin), event.begin))
        elif event.name == "ExecutorState::ProcessAsync::Start":
            started = event.begin
        elif event.name == "ExecutorState::ProcessAsync::Done":
            is_python = event.thread.startswith("python")
            if is_python and event.thread not in threads_of_queues and started:
                spans.append(Span(EXCHANGE, started, event.begin))
                started = 0.0
    return spans


def _is_operation(event: Event) -> bool:
    in_graph = event.thread.startswith("tf_Compute")
    return in_graph and re.search(r"[^:]:_?[A-Z]\w+$", event.name) is not None


def _is_call(event: Event) -> bool:
    return _is_operation(event) and event.name.endswith(":PyFunc")


def steps_of(events: list[Event]) -> list[list[Span]]:
    """Returns the parts of each step: the operations of the graph's thread, and exchanges."""
    steps = [event for event in events if event.name.endswith("step_on_iterator")]
    spans = exchanges_of(events)
    for event in events:
        if _is_operation(event) and not _is_call(event):
            part = next(part for part, pattern in PARTS.items() if re.search(pattern, event.name))
            spans.append(Span(part, event.begin, event.end))
    return [
        [
            *(
                Span(span.part, span.begin - step.begin, span.end - step.begin)
                for span in spans
                if step.begin <= span.begin < step.end
            ),
            Span(BETWEEN, step.end - step.begin, following.begin - step.begin),
        ]
        for step, following in itertools.pairwise(steps)
    ]


def milliseconds(step: list[Span]) -> dict[str, float]:
    """Returns how long each part of a step took; all but exchanges add up to the step."""
    found = dict.fromkeys(["forward pass", "backward pass", "update"], 0.0)
    for span in step:
        found[span.part] = found.get(span.part, 0.0) + span.end - span.begin
    exchange = found.pop(EXCHANGE, 0.0)
    idle = step[-1].end - sum(found.values())
    return {**found, IDLE: idle, "the step": step[-1].end, EXCHANGE: exchange}
