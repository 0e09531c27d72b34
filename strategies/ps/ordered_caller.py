"""Calls of Python functions from graphs in program order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from strategies._tensorflow import ResourceVariable
from strategies.collectives.health.spans import EXCHANGE, SpanStream

_CPU = "/device:CPU:0"


class OrderedCaller:
    """Calls Python functions from graphs in program order, also across steps.

    Args:
      is_common: whether all workers make the same calls and wait for one another.
      is_measured: whether the duration of the calls is recorded.
    """

    def __init__(self, is_common: bool, is_measured: bool = True) -> None:
        self._spans = SpanStream(EXCHANGE, is_common, is_measured)
        with tf.init_scope(), tf.device(_CPU):
            # TensorFlow keeps reads and writes of the same variable in order.
            self._ticket = ResourceVariable(0, trainable=False, dtype=tf.int64)

    def call(
        self,
        name: str,
        function: Callable[..., Any],
        tensors: Sequence[tf.Tensor],
        dtypes: Sequence[tf.DType],
    ) -> list[tf.Tensor]:
        """Returns the results of a function, called after all calls before it in the program.

        Args:
          name: the name of the call in the timeline of the step.
          function: takes the tensors' values as arrays.
          tensors: the arguments.
          dtypes: the dtypes of the results.
        """

        def in_order(ticket: np.ndarray, *arrays: np.ndarray) -> list[Any]:
            return [*self._spans.measure_call(name, lambda: function(*arrays)), ticket + 1]

        with tf.device(_CPU):
            ticket = self._ticket.read_value()
            *results, ticket = tf.numpy_function(in_order, [ticket, *tensors], [*dtypes, tf.int64])
            self._ticket.assign(tf.ensure_shape(ticket, []), read_value=False)
        return results
