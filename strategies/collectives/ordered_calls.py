"""Calls of Python functions from graphs in program order."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.compat.tensorflow import ResourceVariable
from strategies.utils.devices import HOST

_CALLS = "keras_strategies/ordered_calls"  # a collection of graphs
_recorders = threading.local()


@contextlib.contextmanager
def record_calls(record: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Makes each call that the block adds to a graph run in a context that `record` returns."""
    before = getattr(_recorders, "record", contextlib.nullcontext)
    _recorders.record = record
    try:
        yield
    finally:
        _recorders.record = before


def calls_of(graph: tf.Graph) -> list[tf.Operation]:
    """Returns the calls that were added to a graph, in program order."""
    return graph.get_collection(_CALLS)


class OrderedCalls:
    """Calls Python functions from graphs in program order, also across steps.

    A call blocks a TensorFlow thread until it returns, and there may be only one such thread. So
    calls in a step that wait for other workers must share one object: with two, and no dependency
    between their calls, a worker could wait in a call of the first, and another worker in a call of
    the second, forever.
    """

    def __init__(self) -> None:
        with tf.init_scope(), tf.device(HOST):
            # See [Note: whose turn it is] in base.py.
            self._ticket = ResourceVariable(0, trainable=False, dtype=tf.int64)

    def call(
        self,
        function: Callable[..., Sequence[Any]],
        tensors: Sequence[tf.Tensor],
        dtypes: Sequence[tf.DType],
    ) -> list[tf.Tensor]:
        """Returns the results of a function, called after all calls before it in the program.

        Args:
          function: takes the tensors' values as arrays.
          tensors: the arguments.
          dtypes: the dtypes of the results.
        """

        record = getattr(_recorders, "record", contextlib.nullcontext)

        def in_order(ticket: np.ndarray, *arrays: np.ndarray) -> list[Any]:
            with record():
                return [*function(*arrays), ticket + 1]

        with tf.device(HOST):
            # The call reads the ticket, and the next call's read waits for this one's write. The
            # value itself is irrelevant: it only makes each call depend on the one before.
            ticket = self._ticket.read_value()
            *results, ticket = tf.numpy_function(in_order, [ticket, *tensors], [*dtypes, tf.int64])
            if not tf.executing_eagerly():
                tf.compat.v1.add_to_collection(_CALLS, ticket.op)
            self._ticket.assign(tf.ensure_shape(ticket, []), read_value=False)
        return results
