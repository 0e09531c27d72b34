"""Values that were already reduced over all replicas, such as the results of metrics."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

# The collection of a graph with its tensors that are the same on all replicas.
_COLLECTION = "keras_strategies/merged"
# Operations that TensorFlow declares stateful, but whose results are equal if their inputs are.
_PLAIN = ("ReadVariableOp", "VarHandleOp")
_thread = threading.local()


def mark_merged(value: Any) -> Any:
    """Marks the tensors of a structure as being the same on all replicas; returns the structure."""
    for tensor in tf.nest.flatten(value):
        if not isinstance(tensor, tf.Tensor):
            continue
        if tf.is_symbolic_tensor(tensor):
            tensor.graph.add_to_collection(_COLLECTION, tensor)
        elif (eager := eager_merged()) is not None:
            eager.mark(tensor)
    return value


def is_merged(tensor: Any) -> bool:
    """Returns whether a tensor of a graph was computed only from merged values.

    Constants and variables are allowed, too. All other values, such as a replica's part of the
    batch, differ between replicas.
    """
    if not tf.is_symbolic_tensor(tensor):
        return False
    marked = {id(each) for each in tensor.graph.get_collection(_COLLECTION)}
    todo, seen, has_merged = [tensor], set(), False
    while todo:
        current = todo.pop()
        if id(current) in marked:
            has_merged = True
            continue
        if current.name in seen:
            continue
        seen.add(current.name)
        op = current.op
        is_handle = op.type == "Placeholder" and current.dtype == tf.resource
        is_stateful = op.op_def.is_stateful and op.type not in _PLAIN
        if is_stateful or (op.type.startswith("Placeholder") and not is_handle):
            return False
        # `tf.custom_gradient` passes inputs and outputs of a function through the same IdentityN.
        is_one_to_one = op.type == "IdentityN"
        todo += [op.inputs[current.value_index]] if is_one_to_one else op.inputs
    return has_merged


class EagerMerged:
    """Records in eager execution which values were computed from merged ones.

    Without a graph, a tape is needed for this. It records only operations on merged values, which
    are few: those on the results of metrics at the end of a step.

    A tape records a single thread. If replicas run in their own threads, values are merged in the
    thread that called the replicas. So that thread has a recorder as well, from which the replicas
    take over the values that they receive.

    Args:
      caller: recorder of the thread that calls the replicas; None if there is none.

    Attributes:
      marked: the merged values.
    """

    def __init__(self, caller: EagerMerged | None = None) -> None:
        self._caller = caller
        self._tape = tf.GradientTape(persistent=True, watch_accessed_variables=False)
        self.marked: list[tf.Tensor] = []

    def mark_following(self, value: Any) -> None:
        """Marks the tensors of a structure that were computed from merged values."""
        with self._tape.stop_recording():
            following = [each for each in tf.nest.flatten(value) if self.follows(each)]
        for each in following:
            self.mark(each)

    def take_over(self, value: Any) -> None:
        """Marks the tensors of a structure that the calling thread has marked."""
        marked = () if self._caller is None else self._caller.marked
        for each in tf.nest.flatten(value):
            if any(each is other for other in marked):
                self.mark(each)

    def mark(self, tensor: tf.Tensor) -> None:
        """Marks a tensor as merged."""
        self.marked.append(tensor)
        if tensor.dtype.is_floating:
            self._tape.watch(tensor)

    def follows(self, value: Any) -> bool:
        """Returns whether a value is a merged value, or was computed from one."""
        if any(value is each for each in self.marked):
            return True
        if not isinstance(value, tf.Tensor) or not value.dtype.is_floating:
            return False
        watched = [each for each in self.marked if each.dtype.is_floating]
        gradients = self._tape.gradient(value, watched) if watched else []
        return any(gradient is not None for gradient in gradients)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Records the computations of this thread while the block runs."""
        before = getattr(_thread, "eager", None)
        _thread.eager = self
        try:
            with self._tape:
                yield
        finally:
            _thread.eager = before


def eager_merged() -> EagerMerged | None:
    """Returns the recorder of this thread, if it has one."""
    return getattr(_thread, "eager", None)
