"""Makes the metrics in the logs of a custom Keras 3 step cover all replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from strategies.collectives import Collectives
from strategies.compat.tensorflow import PerReplica, SyncOnReadVariable


def with_merged_metrics(
    logs: Any, variables: Sequence[SyncOnReadVariable], replicas: int, collectives: Collectives
) -> Any:
    """Returns the logs of a step as if each replica had read the metrics of all replicas.

    In a step, a replica reads its own part of a metric's variables. At the end of an epoch, Keras 3
    logs the results of the metrics themselves if the step returns all of them by their names.
    Otherwise it logs the mean of the replicas' results, but a mean of roots, ratios or areas is not
    the root, ratio or area of all examples. So values that a replica computed from its parts are
    recomputed from the sums of the parts.

    Args:
      logs: the results of a traced step on all replicas.
      variables: the variables of the model's metrics.
      replicas: the number of replicas of this worker.
      collectives: the collectives of the workers.
    """
    is_alone = replicas * collectives.size == 1
    if not variables or is_alone or not isinstance(logs, Mapping) or tf.executing_eagerly():
        return logs
    copies = {}
    for name, value in logs.items():
        values = value.values if isinstance(value, PerReplica) else (value,)
        if len(values) == replicas and all(map(tf.is_symbolic_tensor, values)):
            copies[name] = _copies(values, variables)
    reads = [
        read for each in copies.values() for read in zip(*(c.reads for c in each), strict=True)
    ]
    if not reads:
        return logs
    sums = collectives.all_reduce([tf.add_n([tensor for _, tensor in read]) for read in reads])
    parts = replicas * collectives.size
    merged = iter(
        total / tf.cast(parts, total.dtype)
        if read[0][0].aggregation == tf.VariableAggregation.MEAN
        else total
        for read, total in zip(reads, sums, strict=True)
    )
    computed = dict(logs)
    for name, each in copies.items():
        if each:
            totals = [next(merged) for _ in each[0].reads]
            values = [copy.recompute(totals) for copy in each]
            computed[name] = PerReplica(values) if replicas > 1 else values[0]
    return computed


def _copies(
    values: Sequence[tf.Tensor], variables: Sequence[SyncOnReadVariable]
) -> Sequence[_Copy]:
    """Returns a copy of each replica's value; empty unless all of them read the same variables."""
    graph = values[0].graph
    handles = {
        graph.capture(part.handle).name: variable
        for variable in variables
        for part in variable.values
    }
    copies = [_Copy(value, handles) for value in values]
    order = {tuple(id(variable) for variable, _ in copy.reads) for copy in copies}
    return copies if len(order) == 1 and copies[0].reads else ()


class _Copy:
    """A tensor of a graph that can be recomputed from other values of variables.

    It is not implemented recursively, because a loss depends on a chain of operations as long as
    its model is deep.

    Args:
      tensor: the tensor.
      handles: variables by the names of their handles in the graph.

    Attributes:
      reads: the variables that the tensor is computed from, with the tensors read; empty if an
        operation in between is stateful, and so cannot be repeated.
    """

    def __init__(self, tensor: tf.Tensor, handles: Mapping[str, SyncOnReadVariable]):
        self._tensor = tensor
        self.reads: list[tuple[SyncOnReadVariable, tf.Tensor]] = []
        # In the order of the computation, without the reads.
        self._following: list[tf.Operation] = []
        names: set[str] = set()
        for op in _operations_for(tensor):
            variable = handles.get(op.inputs[0].name) if op.type == "ReadVariableOp" else None
            if variable is not None:
                self.reads.append((variable, op.outputs[0]))
            elif any(each.name in names for each in op.inputs):
                self._following.append(op)
            else:
                continue
            names.update(output.name for output in op.outputs)
        if any(op.op_def.is_stateful for op in self._following):
            self.reads = []

    def recompute(self, values: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns the tensor computed from other values instead of those of `reads`."""
        made = {tensor.name: value for (_, tensor), value in zip(self.reads, values, strict=True)}
        for op in self._following:
            repeated = self._tensor.graph.create_op(
                op.type,
                [made.get(each.name, each) for each in op.inputs],
                [output.dtype for output in op.outputs],
                attrs={name: op.node_def.attr[name] for name in op.node_def.attr},
                op_def=op.op_def,
            )
            for output, again in zip(op.outputs, repeated.outputs, strict=True):
                made[output.name] = again
        return made[self._tensor.name]


def _operations_for(tensor: tf.Tensor) -> list[tf.Operation]:
    """Returns the operations that a tensor depends on, in the order of their creation."""
    seen, todo = set(), [tensor.op]
    while todo:
        op = todo.pop()
        if op.name not in seen:
            seen.add(op.name)
            todo += [each.op for each in op.inputs if each.dtype != tf.resource]
    return [op for op in tensor.graph.get_operations() if op.name in seen]
