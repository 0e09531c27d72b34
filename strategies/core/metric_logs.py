"""The logs of a user's own step of Keras 3: results of metrics are those of all replicas."""

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
    logs the results of the metrics themselves if a step returns all of them by their names.
    Otherwise it logs the mean of what the replicas return, and a mean of roots, ratios or areas is
    not that of all examples. So what a replica computed from its parts is computed again from the
    sums of the parts.

    Args:
      logs: the results of a traced step on all replicas.
      variables: the variables of the model's metrics.
      replicas: the number of replicas of this worker.
      collectives: the collectives of the workers.
    """
    is_alone = replicas * collectives.size == 1
    if not variables or is_alone or not isinstance(logs, Mapping) or tf.executing_eagerly():
        return logs
    merged = dict(logs)
    for name, value in logs.items():
        values = value.values if isinstance(value, PerReplica) else (value,)
        if len(values) == replicas and all(map(tf.is_symbolic_tensor, values)):
            values = _merge(values, variables, collectives)
            merged[name] = PerReplica(values) if replicas > 1 else values[0]
    return merged


def _merge(
    values: Sequence[tf.Tensor], variables: Sequence[SyncOnReadVariable], collectives: Collectives
) -> Sequence[tf.Tensor]:
    """Returns the values of a log, one of each replica, computed from the sums of what was read."""
    handles = {
        id(value.graph.capture(part.handle)): variable
        for value in values[:1]
        for variable in variables
        for part in variable.values
    }
    copies = [_Copy(value, handles) for value in values]
    order = [variable for variable, _ in copies[0].reads]
    if not order or any([v for v, _ in copy.reads] != order for copy in copies):
        return values
    sums = collectives.all_reduce(
        [tf.add_n([copy.reads[position][1] for copy in copies]) for position in range(len(order))]
    )
    parts = len(values) * collectives.size
    means = [
        each / tf.cast(parts, each.dtype)
        if variable.aggregation == tf.VariableAggregation.MEAN
        else each
        for variable, each in zip(order, sums, strict=True)
    ]
    return [copy.of(means) for copy in copies]


class _Copy:
    """A tensor of a graph, which can be computed again from other values of variables.

    Args:
      tensor: the tensor.
      handles: variables by the identities of their handles in the graph.

    Attributes:
      reads: the variables that the tensor is computed from, with the tensors read; none if an
        operation on the way has an effect, and so cannot be repeated.
    """

    def __init__(self, tensor: tf.Tensor, handles: Mapping[int, SyncOnReadVariable]):
        self._tensor = tensor
        self.reads: list[tuple[SyncOnReadVariable, tf.Tensor]] = []
        self._is_repeatable = True
        self._depends: dict[str, bool] = {}
        self._handles = handles
        self._visit(tensor)
        if not self._is_repeatable:
            self.reads = []

    def _visit(self, tensor: tf.Tensor) -> bool:
        """Returns whether a tensor depends on what was read."""
        if tensor.name in self._depends:
            return self._depends[tensor.name]
        op = tensor.op
        variable = None
        if op.type == "ReadVariableOp":
            variable = self._handles.get(id(op.inputs[0]))
        if variable is not None:
            self.reads.append((variable, tensor))
        depends = [self._visit(each) for each in op.inputs if each.dtype != tf.resource]
        depends_on_reads = variable is not None or any(depends)
        if variable is None and depends_on_reads and op.op_def.is_stateful:
            self._is_repeatable = False
        self._depends[tensor.name] = depends_on_reads
        return depends_on_reads

    def of(self, values: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns the tensor computed from other values in place of those of `reads`."""
        made = {tensor.name: value for (_, tensor), value in zip(self.reads, values, strict=True)}
        return self._repeat(self._tensor, made)

    def _repeat(self, tensor: tf.Tensor, made: dict[str, tf.Tensor]) -> tf.Tensor:
        if not self._depends.get(tensor.name):
            return tensor
        if tensor.name not in made:
            op = tensor.op
            repeated = tensor.graph.create_op(
                op.type,
                [self._repeat(each, made) for each in op.inputs],
                [output.dtype for output in op.outputs],
                attrs={name: op.node_def.attr[name] for name in op.node_def.attr},
                op_def=op.op_def,
            )
            for output, again in zip(op.outputs, repeated.outputs, strict=True):
                made[output.name] = again
        return made[tensor.name]
