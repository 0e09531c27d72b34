"""The mean of state that each replica keeps until it is read, such as tf_keras's moving means.

[Note: state of evaluations]
tf_keras gives `BatchNormalization` moving means with `ON_READ` and `MEAN`: each replica updates its
own, and files contain their mean. Under stock strategies, a replica that evaluates uses its own, so
`evaluate` and `predict` of a trained model return something else than those of the same model once
it is saved and loaded. Here, all replicas get the mean whenever an iteration over a distributed
dataset begins outside of `fit`: in `evaluate`, in `predict`, and in loops, which may evaluate. This
does not change training: updates of moving means are linear, so the mean of the replicas stays the
same.
"""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf

from strategies.compat.tensorflow import SyncOnReadVariable
from strategies.reduction import ReplicaCrossDeviceOps

_MEAN = tf.distribute.ReduceOp.MEAN


class ReplicaMeans:
    """The variables of a strategy of which each replica keeps a value, and files the mean."""

    def __init__(self) -> None:
        self._variables: list[weakref.ref[SyncOnReadVariable]] = []

    def add(self, variable: SyncOnReadVariable) -> None:
        """Adds a variable, unless files do not contain its mean."""
        if variable.aggregation == tf.VariableAggregation.MEAN and variable.dtype.is_floating:
            self._variables.append(weakref.ref(variable))

    def assign(self, ops: ReplicaCrossDeviceOps) -> None:
        """Gives all replicas of all workers the means; all workers must call it together."""
        variables: list[Any] = [v for each in self._variables if (v := each()) is not None]
        if not variables:
            return
        means = ops.batch_reduce(_MEAN, [(variable, variable) for variable in variables])
        for variable, mean in zip(variables, means, strict=True):
            copies = getattr(mean, "values", [mean])
            for component, copy in zip(variable.values, copies, strict=True):
                component.assign(copy)
