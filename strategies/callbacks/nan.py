"""Termination of training at the first NaN or infinite gradient, with the worker that has it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from strategies.callbacks.base import Callback
from strategies.collectives.workers import are_in_step, collectives_of
from strategies.compat.keras import tensorflow_variable, watch_gradients
from strategies.compat.tensorflow import ResourceVariable, is_compiled_by_xla
from strategies.utils.devices import HOST

_NAMED = 3  # variables in a message


class TerminateOnNaN(Callback):
    """Ends training on all workers when a gradient on any of them is NaN or infinite.

    Keras's callback of the same name checks the loss, which is that of all workers together. This
    one checks each worker's own gradients before they are summed, and logs the workers and the
    variables in question:

        model.fit(dataset, callbacks=[strategies.callbacks.TerminateOnNaN()])

    The weights already include that step's update: restore a checkpoint from before it. A loss
    that is not finite ends training, too. Under `mixed_float16`, gradients that overflow are not
    an error: the optimizer skips such a step. The callback reads all gradients once more, and the
    workers exchange a few bytes in each step. With `steps_per_execution` it reports the last step
    of the execution.

    Raises:
      ValueError: when training begins, with parameter servers whose workers are not in step.
    """

    runs_on_all_workers = True

    def __init__(self) -> None:
        self._watch = contextlib.ExitStack()
        self._counts: dict[tuple[int, ...], _Counts] = {}

    def set_model(self, model: Any) -> None:
        """Starts watching the gradients, before Keras traces the step."""
        super().set_model(model)
        if not are_in_step(model.distribute_strategy):
            raise ValueError(
                "strategies.callbacks.TerminateOnNaN requires workers that train in lockstep. "
                "Received: a parameter-server mode in which they do not. Use "
                "keras.callbacks.TerminateOnNaN."
            )
        self._watch.close()
        self._counts.clear()
        self._watch.enter_context(watch_gradients(model, self._count_wrong))

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Gathers the findings of all workers; ends training if there are any."""
        loss = (logs or {}).get("loss", 0.0)
        collectives = collectives_of(self.model.distribute_strategy)
        found = self._take()
        is_wrong = not math.isfinite(float(loss))
        mine = np.concatenate([found, [is_wrong]]).astype(np.int64)
        by_worker = collectives.all_gather(tf.constant(mine[np.newaxis])).numpy()
        if not by_worker.any():
            return
        names = [_name(each) for each in self.model.trainable_variables] + ["other variables"]
        whose = "; ".join(
            f"worker {rank} in {_format_names(names, row[:-1])}"
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
        """Stops watching the gradients."""
        self._watch.close()

    def _count_wrong(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Counts, in a step's graph, the replicas' gradients that are NaN or infinite.

        A step may apply gradients several times, each time to other variables, as a GAN's does.
        """
        key = tuple(map(id, variables))
        if key not in self._counts:
            self._counts[key] = _Counts(variables)
        wrong = tf.stack([_is_wrong(gradient) for gradient in gradients])
        weight = _input_weight()
        if weight is not None:  # a mean over no examples is NaN, and is ignored
            wrong = tf.logical_and(wrong, weight > 0)
        self._counts[key].add(wrong)

    def _take(self) -> np.ndarray:
        """Returns and resets the counts: of each trainable variable, and of all others together."""
        # All workers exchange the same number of values, also those without a gradient so far.
        positions = {id(each): n for n, each in enumerate(self.model.trainable_variables)}
        found = np.zeros([len(positions) + 1], np.int64)
        for counts in self._counts.values():
            where = [positions.get(id(each), len(positions)) for each in counts.variables]
            np.add.at(found, where, counts.take())
        return found


class _Counts:
    """Counts of NaN or infinite gradients, one for each variable.

    Args:
      variables: the variables that the gradients belong to.
    """

    def __init__(self, variables: Sequence[Any]):
        self.variables = list(variables)  # kept alive, so that no other variable gets one's id
        # XLA compiles a step for the device that the variables are on.
        is_compiled = is_compiled_by_xla(tf.compat.v1.get_default_graph())
        first = tensorflow_variable(variables[0]) if variables else None
        self._device = first.device if is_compiled and first is not None else HOST
        with tf.init_scope(), tf.device(self._device):
            self._found = ResourceVariable(tf.zeros([len(variables)], tf.int64), trainable=False)

    def add(self, wrong: tf.Tensor) -> None:
        """Adds one to the count of each gradient that is not finite."""
        with tf.device(self._device):
            self._found.assign_add(tf.cast(wrong, tf.int64), read_value=False)

    def take(self) -> np.ndarray:
        """Returns the counts and resets them."""
        found = self._found.numpy()
        if found.any():
            self._found.assign(np.zeros_like(found))
        return found


def _name(variable: Any) -> str:
    return getattr(variable, "path", None) or variable.name


def _format_names(names: Sequence[str], row: np.ndarray) -> str:
    wrong = [name for name, count in zip(names, row, strict=True) if count]
    more = f" and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
    return ", ".join(wrong[:_NAMED]) + more


def _is_wrong(gradient: Any) -> tf.Tensor:
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    if values is None:
        return tf.constant(False)
    return tf.logical_not(tf.reduce_all(tf.math.is_finite(values)))


def _input_weight() -> tf.Tensor | None:
    context: Any = tf.distribute.get_replica_context()
    extended = None if context is None else context.strategy.extended
    return (
        extended.input_weight()
        if extended is not None and hasattr(extended, "input_weight")
        else None
    )
