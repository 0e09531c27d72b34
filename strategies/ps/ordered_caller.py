"""Calls of Python functions from graphs, in program order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from strategies._tensorflow import ResourceVariable
from strategies.collectives.health.spans import EXCHANGE, SpanStream

_CPU = "/device:CPU:0"


class OrderedCaller:
    """Calls Python functions in program order, across steps as well.

    Args:
      is_common: whether all workers make the same calls, each waiting for the others.
      is_measured: whether the time that they take is recorded.
    """

    def __init__(self, is_common: bool, is_measured: bool = True) -> None:
        self._spans = SpanStream(EXCHANGE, is_common, is_measured)
        with tf.init_scope(), tf.device(_CPU):
            # TensorFlow puts in order what reads and writes the same variable.
            self._ticket = ResourceVariable(0, trainable=False, dtype=tf.int64)

    def call(
        self,
        name: str,
        function: Callable[..., Any],
        tensors: Sequence[tf.Tensor],
        dtypes: Sequence[tf.DType],
    ) -> list[tf.Tensor]:
        """Returns the results of a function of arrays, called after those before it.

        Args:
          name: what the function does, for a picture of the step.
          function: is given the tensors' values.
          tensors: its arguments.
          dtypes: of its results.
        """

        def in_order(ticket: np.ndarray, *arrays: np.ndarray) -> list[Any]:
            return [*self._spans.measure_call(name, lambda: function(*arrays)), ticket + 1]

        with tf.device(_CPU):
            ticket = self._ticket.read_value()
            *results, ticket = tf.numpy_function(in_order, [ticket, *tensors], [*dtypes, tf.int64])
            self._ticket.assign(tf.ensure_shape(ticket, []), read_value=False)
        return results
