"""The order in which the operations of a step run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from strategies.collectives.ordered_calls import calls_of
from strategies.compat.tensorflow import add_control_input
from strategies.utils.threads import inter_op_threads

# What enters a loop or branch of TensorFlow 1; its other operations follow.
_ENTER = ("Enter", "Switch")
_READ = ("ReadVariableOp",)  # stateful, but without an effect
_CONSTANT = ("Const", "Placeholder")


@contextlib.contextmanager
def delay_effects(condition: tf.Operation) -> Iterator[None]:
    """Makes operations with effects that the block adds to the graph run only after `condition`.

    Constants and reads do not wait, as they would with `tf.control_dependencies`: TensorFlow would
    then start each of them separately when the batch has arrived, which takes some 0.1 ms in a step
    with 70 of them, and workers that exchange values run their operations in different orders.
    """
    after = {condition}
    with _added_operations() as operations:
        yield
    for each in operations:
        if after.isdisjoint(_sources(each)):
            if not _may_have_effects(each):
                continue
            add_control_input(each, condition)
        after.add(each)


@contextlib.contextmanager
def compute_before_exchanges(devices: Sequence[str]) -> Iterator[None]:
    """Makes exchanges that block a thread wait for whatever in the block can be computed before.

    This applies to processes in which TensorFlow runs one operation at a time. It chooses which of
    those that are ready comes next by estimates of their costs, so that one worker may exchange
    gradients first and another one multiply matrices first. Each would then wait for the other one.
    With several threads or a GPU, values are computed during the exchange.

    Args:
      devices: the devices of this worker's replicas.
    """
    is_single_cpu = len(devices) == 1 and tf.DeviceSpec.from_string(devices[0]).device_type == "CPU"
    if tf.executing_eagerly() or not is_single_cpu or inter_op_threads() > 1:
        yield
        return
    with _added_operations() as operations:
        yield
    calls = set(calls_of(tf.compat.v1.get_default_graph()))
    exchanges = [each for each in operations if each in calls]
    # An operation in a loop of TensorFlow 1 cannot be a dependency of one outside.
    if not exchanges or any(each.type in _ENTER for each in operations):
        return
    levels = _levels(operations, exchanges)
    for each in _last_computed(operations, levels):
        # No cycle results: an operation's level is at least that of each dependency, and higher if
        # it depends on the exchange of that level.
        if levels[each] < len(exchanges) and each.device in ("", devices[0]):
            add_control_input(exchanges[levels[each]], each)


@contextlib.contextmanager
def _added_operations() -> Iterator[list[tf.Operation]]:
    """Returns a list to which the operations are added that the block has added to the graph."""
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    added: list[tf.Operation] = []
    yield added
    added += graph.get_operations()[before:]


def _levels(
    operations: Sequence[tf.Operation], exchanges: Sequence[tf.Operation]
) -> dict[tf.Operation, int]:
    """Returns how many exchanges come before each operation.

    TensorFlow orders operations that use the same resource when the whole function has been traced.
    Here, each of them depends on all earlier ones, as do those with effects on no resource, such as
    the exchanges.
    """
    blocking = set(exchanges)
    levels: dict[tf.Operation, int] = {}
    after: dict[Any, int] = {}  # the levels of what depends on operations and resources
    for each in operations:
        resources: list[Any] = [t.ref() for t in each.inputs if t.dtype == tf.resource]
        if each.op_def.is_stateful and not resources:
            resources = [None]
        sources = [*_sources(each), *resources]
        levels[each] = max((after.get(source, 0) for source in sources), default=0)
        for use in (each, *resources):
            after[use] = levels[each] + (each in blocking)
    return levels


def _last_computed(
    operations: Sequence[tf.Operation], levels: dict[tf.Operation, int]
) -> list[tf.Operation]:
    """Returns what is computed at each level, and used only at others or by effects."""
    needed: set[tf.Operation] = set()
    for each in reversed(operations):
        if each in needed or _may_have_effects(each):
            needed.update([each, *_sources(each)])
    last: dict[tf.Operation, None] = {}
    for each in operations:
        if each in needed and not each.op_def.is_stateful and each.type not in _CONSTANT:
            for source in _sources(each):
                if levels.get(source) == levels[each]:
                    last.pop(source, None)
            last[each] = None
    return list(last)


def _sources(operation: tf.Operation) -> set[tf.Operation]:
    return {tensor.op for tensor in operation.inputs}.union(operation.control_inputs)


def _may_have_effects(operation: tf.Operation) -> bool:
    return operation.type in _ENTER or operation.type not in _READ and operation.op_def.is_stateful
