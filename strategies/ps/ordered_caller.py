"""Calls of Python functions from graphs in program order, for the timeline of the step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from strategies.collectives.ordered_calls import OrderedCalls
from strategies.profiling.spans import EXCHANGE, SpanStream


class OrderedCaller:
    """Calls Python functions from graphs in program order, also across steps.

    Args:
      is_common: whether all workers make the same calls and wait for one another.
      is_measured: whether the duration of the calls is recorded.
    """

    def __init__(self, is_common: bool, is_measured: bool = True) -> None:
        self._spans = SpanStream(EXCHANGE, is_common, is_measured)
        self._calls = OrderedCalls()

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
        return self._calls.call(
            lambda *arrays: self._spans.measure_call(name, lambda: function(*arrays)),
            tensors,
            dtypes,
        )
