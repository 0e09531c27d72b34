"""GEO-SGD: local training, with the progress added to the servers every few steps."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from strategies._tensorflow import ResourceVariable
from strategies.ps.update_mode import PushAndPull
from strategies.ps.updates import VariableUpdate
from strategies.ps.variables import SharedVariable, add, assign_copy, local_copy


class Geo:
    """GEO-SGD: each of N workers adds 1/N of its progress to the servers' values.

    A worker trains its copy W with an optimizer of its own, and remembers the value W' that it
    last had in common with the servers. At an exchange it sends delta = (W - W') / N, which the
    servers add to their value V; then W' becomes W' + delta, W becomes W + V - W', and W' becomes
    V. So the progress that is not sent yet shrinks by 1 - 1/N an exchange, nothing of it is lost,
    and of one worker W equals V after each exchange. The algorithm is that of PaddlePaddle's
    GeoCommunicator.

    Steps are counted for each set of variables by itself, for models that are trained in turn make
    steps of different ones.

    Staleness: what a worker computes with lacks none of its own steps; of another worker's it
    lacks those of up to `every` steps that are not sent yet, and those sent since the last
    exchange of its own.

    Args:
      size: how many workers there are.
      every: steps between two exchanges of the same variables.
    """

    def __init__(self, size: int, every: int):
        self._size = size
        self._every = every
        self._steps: dict[frozenset[str], ResourceVariable] = {}

    def step(self, variables: Sequence[SharedVariable], push_and_pull: PushAndPull) -> None:
        """Counts a step, and exchanges the variables when it is due.

        Args:
          variables: that the step has changed.
          push_and_pull: applies updates on the servers, and returns the new values.
        """

        def exchange_deltas() -> tf.Tensor:
            deltas = [(local_copy(v) - v.base) / self._size for v in variables]
            updates = [
                VariableUpdate(v, add, ((delta,), {}))
                for v, delta in zip(variables, deltas, strict=True)
            ]
            for variable, delta in zip(variables, deltas, strict=True):
                variable.base.assign_add(delta, read_value=False)
            for variable, value in push_and_pull(updates):
                assign_copy(variable, local_copy(variable) + value - variable.base)
                variable.base.assign(value, read_value=False)
            return tf.constant(True)

        steps = self._steps_of(variables).assign_add(1)
        tf.cond(steps % self._every == 0, exchange_deltas, lambda: tf.constant(False))

    def _steps_of(self, variables: Sequence[SharedVariable]) -> ResourceVariable:
        """Returns the number of steps that have changed just these variables."""
        names = frozenset(variable.remote.name for variable in variables)
        if names not in self._steps:
            with tf.init_scope(), tf.device("/device:CPU:0"):
                self._steps[names] = ResourceVariable(0, trainable=False, dtype=tf.int64)
        return self._steps[names]
