"""Detects means over a replica's own examples in the graph of a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import tensorflow as tf

_DIVISIONS = ("RealDiv", "DivNoNan")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall", "If", "StatelessIf")
_BATCHES = ("IteratorGetNext", "OptionalGetValue")
_NO_DATA = (tf.resource, tf.variant)
# The name scopes of values that are not losses: gradients, and the corrections of `loss_logs`.
_GRADIENTS = "gradient_tape/"
LOSS_LOGS = "loss_logs"


def takes_mean(operations: Sequence[tf.Operation], divisor: int | None) -> bool:
    """Returns whether a step takes a mean over a replica's own examples and does not divide it.

    A mean is a scalar that is computed from the batch by a mean, or by a division by a value that
    is not a constant, such as the size of the replica's batch or the sum of a mask. The result of a
    nested function or a branch may be one. A sum is not, even if it is divided by a constant.

    >>> graph = tf.Graph()
    >>> with graph.as_default():
    ...     loss = tf.reduce_mean(tf.compat.v1.placeholder(tf.float32, [None]))
    >>> takes_mean(graph.get_operations(), None), takes_mean(graph.get_operations(), 2)
    (True, True)
    >>> with graph.as_default():
    ...     divided = loss / 2
    >>> takes_mean(graph.get_operations(), None), takes_mean(graph.get_operations(), 2)
    (True, False)

    Args:
      operations: the operations of the step.
      divisor: the number of replicas if the step may divide by it; None if it has not read it.
    """
    forward = [op for op in operations if _GRADIENTS not in op.name and LOSS_LOGS not in op.name]
    known = set(forward)
    return any(
        _is_mean(op, divisor) and not (divisor and _is_divided(op, divisor, known))
        for op in forward
    )


def _is_mean(op: tf.Operation, divisor: int | None) -> bool:
    if not any(_is_number(tensor) for tensor in op.outputs):
        return False
    if op.type in _DIVISIONS:
        numerator, denominator = op.inputs
        is_constant = tf.get_static_value(denominator) is not None
        if is_constant or divisor and _has_factor(denominator.op, divisor):
            return False
        return _is_of_batch(numerator.op)
    return (op.type == "Mean" or op.type in _CALLS) and _is_of_batch(op)


def _is_number(tensor: tf.Tensor) -> bool:
    return tensor.dtype.is_floating and tensor.shape.rank == 0


def _sources(op: tf.Operation) -> Iterator[tf.Operation]:
    """Yields an operation and all operations that it depends on."""
    waiting, seen = [op], {op}
    while waiting:
        yield (op := waiting.pop())
        new = {tensor.op for tensor in op.inputs} - seen
        seen |= new
        waiting += new


def _is_of_batch(op: tf.Operation) -> bool:
    """Returns whether a value is computed from a step's inputs, and not from gradients."""
    is_of_batch = False
    for source in _sources(op):
        if _GRADIENTS in source.name:
            return False
        is_input = source.type == "Placeholder" and source.outputs[0].dtype not in _NO_DATA
        is_of_batch = is_of_batch or is_input or source.type in _BATCHES
    return is_of_batch


def _has_factor(op: tf.Operation, factor: float) -> bool:
    """Returns whether a value is computed from a product with a constant factor."""
    return any(
        source.type == "Mul" and any(tf.get_static_value(t) == factor for t in _numbers(source))
        for source in _sources(op)
    )


def _is_divided(op: tf.Operation, divisor: int, known: set[tf.Operation]) -> bool:
    """Returns whether a scalar, or one that is computed from it, is divided by `divisor`."""
    waiting, seen = [op], {op}
    while waiting:
        users = {user for tensor in waiting.pop().outputs for user in tensor.consumers()}
        for user in (users & known) - seen:
            constants = [tf.get_static_value(tensor) for tensor in _numbers(user)]
            if user.type in _DIVISIONS and constants[-1:] == [divisor]:
                return True
            if user.type == "Mul" and any(
                value is not None and abs(value * divisor - 1) < 1e-6 for value in constants
            ):
                return True
            seen.add(user)
            if any(map(_is_number, user.outputs)):
                waiting.append(user)
    return False


def _numbers(op: tf.Operation) -> list[tf.Tensor]:
    return [tensor for tensor in op.inputs if tensor.shape.rank == 0]
