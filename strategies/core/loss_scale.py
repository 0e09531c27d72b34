"""Warns of a model whose own step does not divide its loss by the number of replicas."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from strategies._keras import is_dividing_loss, own_loss_method


class LossScale:
    """Knows whether a model's own step divides its loss by the number of replicas.

    Gradients are summed over replicas, so each replica's loss has to be its part of the batch's.
    Keras's losses see to it (`keras.losses.MeanSquaredError()` and what `compile` gets), and so
    does `tf.nn.compute_average_loss`; the mean that a `train_step` or `compute_loss` takes by
    itself is as large on each replica as it is in one process. What divides asks the strategy for
    the number of replicas first.
    """

    def __init__(self) -> None:
        self._is_asked_for = True  # while no step is watched
        self._warned: set[tuple[type, str]] = set()

    def note(self) -> None:
        """Notes that the number of replicas was asked for, if by what may divide a loss by it."""
        self._is_asked_for = self._is_asked_for or is_dividing_loss()

    @contextlib.contextmanager
    def watch(self, fn: Callable[..., Any], number: int) -> Iterator[None]:
        """Logs a warning after the block if `fn`, which it ran, left its loss undivided.

        Args:
          fn: given to `strategy.run`; one that is no step of a Keras model, or takes its loss
            from Keras, is passed over.
          number: of replicas whose gradients are summed.
        """
        model, method = own_loss_method(fn) if number > 1 else (None, "")
        called = fn, getattr(model, method, None)
        is_function = any(isinstance(f, tf.types.experimental.PolymorphicFunction) for f in called)
        if is_function or not method:
            yield  # the Python code of a tf.function does not run in each step
            return
        self._is_asked_for = False
        yield
        is_divided, self._is_asked_for = self._is_asked_for, True
        if not is_divided and (type(model), method) not in self._warned:
            self._warned.add((type(model), method))
            logging.warning(
                "A loss is divided by the number of replicas, because gradients are summed over "
                "them. Received: %s.%s, whose loss was not divided by strategy."
                "num_replicas_in_sync: its gradients, or the loss in its logs, are %d times those "
                "of one process. Divide it, or use a class of keras.losses, which does. If it is "
                "a sum over rows, or divided by the size of the whole batch, ignore this.",
                type(model).__name__,
                method,
                number,
            )
