"""The end of training at the first gradient that is no number, with the worker that made it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from strategies._keras import watched_gradients
from strategies._tensorflow import ResourceVariable
from strategies.callbacks.base import Callback
from strategies.collectives.workers import collectives_of

_NAMED = 3  # variables in a message


class TerminateOnNaN(Callback):
    """Ends training on all workers in the step in which one has a gradient that is NaN or infinite.

    Keras's callback of that name sees the loss, which is all workers' together. This one sees each
    worker's own gradients before they are summed, and logs whose they are and of which variables:

        model.fit(dataset, callbacks=[strategies.callbacks.TerminateOnNaN()])

    The weights have that step's update by then: restore a checkpoint from before it. A loss that
    is no number ends training as well. Under mixed_float16 gradients that overflow are no error:
    the optimizer skips such a step. It reads all gradients once more, and the workers exchange a
    few bytes in each step; with `steps_per_execution` it says the last step of several.

    Raises:
      ValueError: when training begins, with parameter servers whose workers are not in step.
    """

    def __init__(self) -> None:
        self._watch = contextlib.ExitStack()
        self._found: ResourceVariable | None = None
        self._names: list[str] = []

    def set_model(self, model: Any) -> None:
        """Begins to look at the gradients, before Keras traces the step."""
        super().set_model(model)
        if getattr(model.distribute_strategy.extended, "in_step", True) is False:
            raise ValueError(
                "Training ends on all workers in one step. Received: parameter servers in a mode "
                "whose workers are not in step. Use keras.callbacks.TerminateOnNaN."
            )
        self._watch.close()
        self._found = None
        self._watch.enter_context(watched_gradients(model, self._look))

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Asks all workers for what they found; ends training if it is anything."""
        loss = (logs or {}).get("loss", 0.0)
        collectives = collectives_of(self.model.distribute_strategy)
        found = self._take()
        is_wrong = not math.isfinite(float(loss))
        mine = np.concatenate([found, [is_wrong]]).astype(np.int64)
        by_worker = collectives.all_gather(tf.constant(mine[np.newaxis])).numpy()
        if not by_worker.any():
            return
        whose = "; ".join(
            f"worker {rank} in {self._named(row[:-1])}"
            for rank, row in enumerate(by_worker)
            if row[:-1].any()
        )
        logging.error(
            "Training ends at batch %d: %s.",
            batch,
            f"gradients that are NaN or infinite on {whose}" if whose else f"the loss is {loss}",
        )
        self.model.stop_training = True

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Looks at the gradients no longer."""
        self._watch.close()

    def _look(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Adds to the counts, in a step's graph, how many replicas' gradients are no numbers."""
        if self._found is None:
            self._names = [getattr(each, "path", None) or each.name for each in variables]
            with tf.init_scope(), tf.device("/device:CPU:0"):
                zeros = tf.zeros([len(variables)], tf.int64)
                self._found = ResourceVariable(zeros, trainable=False)
        wrong = tf.stack([_is_wrong(gradient) for gradient in gradients])
        weight = _row_weight()
        if weight is not None:  # a mean over no rows is no number, and counts for nothing
            wrong = tf.logical_and(wrong, weight > 0)
        with tf.device("/device:CPU:0"):
            self._found.assign_add(tf.cast(wrong, tf.int64), read_value=False)

    def _take(self) -> np.ndarray:
        # All workers exchange as many numbers, those without a gradient so far too.
        count = len(self.model.trainable_variables)
        if self._found is None:
            return np.zeros([count], np.int64)
        found = self._found.numpy()
        if found.any():
            self._found.assign(np.zeros_like(found))
        return found

    def _named(self, row: np.ndarray) -> str:
        names = [name for name, wrong in zip(self._names, row, strict=False) if wrong]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return ", ".join(names[:_NAMED]) + more


def _is_wrong(gradient: Any) -> tf.Tensor:
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    if values is None:
        return tf.constant(False)
    return tf.logical_not(tf.reduce_all(tf.math.is_finite(values)))


def _row_weight() -> tf.Tensor | None:
    context: Any = tf.distribute.get_replica_context()
    extended = None if context is None else context.strategy.extended
    return (
        extended.row_weight() if extended is not None and hasattr(extended, "row_weight") else None
    )
