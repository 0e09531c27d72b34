"""A warning about models whose own step does not divide its loss by the number of replicas."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from strategies.compat.keras_losses import is_dividing_loss, is_unreduced, own_loss_method
from strategies.core.loss_graph import takes_mean


class LossReductionCheck:
    """Detects whether a model's own step divides its loss by the number of replicas.

    Gradients are summed over replicas, so each replica's loss must be its share of the loss of the
    batch. Keras's losses take care of this (`keras.losses.MeanSquaredError()` and those passed to
    `compile`), except for losses of Keras 3 that return a scalar; so does
    `tf.nn.compute_average_loss`. A mean that a `train_step` or `compute_loss` computes itself is as
    large on each replica as in one process, so it must be divided. Code that divides it reads the
    strategy's number of replicas. If it does so only once, before all steps, the graph of the step
    shows whether the step takes a mean and divides it.
    """

    def __init__(self) -> None:
        self._is_read_in_step: bool | None = None  # None while no step is watched
        self._is_read_before = False
        self._warned: set[tuple[type, str]] = set()

    def note_read(self) -> None:
        """Records that the number of replicas is read, if the caller may divide a loss by it."""
        if self._is_read_in_step is False:
            self._is_read_in_step = is_dividing_loss()
        elif self._is_read_in_step is None and not self._is_read_before:
            self._is_read_before = is_dividing_loss()

    @contextlib.contextmanager
    def watch(self, fn: Callable[..., Any], number: int) -> Iterator[None]:
        """Logs a warning after the block, which runs `fn`, if `fn` did not divide its loss.

        Args:
          fn: the function passed to `strategy.run`; ignored if it is not a step of a Keras model,
            or if Keras computes its loss.
          number: the number of replicas whose gradients are summed.
        """
        model, method = own_loss_method(fn) if number > 1 else (None, "")
        called = fn, getattr(model, method, None)
        is_function = any(isinstance(f, tf.types.experimental.PolymorphicFunction) for f in called)
        if is_function or not method:
            yield  # the Python code of a tf.function runs only when it is traced
            return
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        begin = 0 if graph is None else len(graph.get_operations())
        self._is_read_in_step = False
        try:
            yield
            is_read = self._is_read_in_step
        finally:
            self._is_read_in_step = None
        if is_read or (type(model), method) in self._warned:
            return
        if graph is None:
            is_wrong = True  # there is no graph to inspect
        else:
            divisor = number if self._is_read_before else None
            # If losses are not reduced, Keras 3 logs their sum over replicas.
            is_wrong = is_unreduced(model, method) or takes_mean(
                graph.get_operations()[begin:], divisor
            )
        if is_wrong:
            self._warned.add((type(model), method))
            logging.warning(
                "A loss must be divided by the number of replicas, because gradients are summed "
                "over them. Received: %s.%s, whose loss was not divided by strategy."
                "num_replicas_in_sync: its gradients, or the loss in its logs, are %d times those "
                "of one process. Divide it, or use a class of keras.losses, which does so. Ignore "
                "this if it is a sum over examples, or already divided by the global batch size.",
                type(model).__name__,
                method,
                number,
            )
