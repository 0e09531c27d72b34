"""Counts the training steps of this process and their examples, for the page of metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from strategies.compat.keras import TRAIN_STEP, running_method, step_of
from strategies.compat.tensorflow import ResourceVariable
from strategies.core.step_inputs import StepInputs
from strategies.diagnostics.metrics import add_source
from strategies.utils.devices import HOST
from tf_config.launcher.progress_file import Sample


class StepCounter:
    """Counts the steps that a strategy runs, where they run: in the graph of a function.

    The steps of `evaluate` and `predict` do not count; in a custom training loop, every function
    that is passed to `strategy.run` does.
    """

    def __init__(self) -> None:
        with tf.init_scope(), tf.device(HOST):
            self._totals = ResourceVariable(tf.zeros([2], tf.int64), trainable=False)
        add_source(self, StepCounter.samples)

    def count(self, fn: Callable[..., Any], inputs: StepInputs) -> None:
        """Counts a step, or makes the function that is being traced count it.

        Args:
          fn: the function passed to `strategy.run`.
          inputs: its arguments.
        """
        if step_of(fn)[1] not in ("", TRAIN_STEP) or running_method() not in (None, "fit"):
            return
        with inputs.guard_effects(), tf.device(HOST):
            examples = tf.add_n(list(inputs.counts(tf.int64).values()))
            added = tf.stack([tf.constant(1, tf.int64), examples])
            self._totals.assign_add(added, read_value=False)

    def samples(self) -> Iterable[Sample]:
        """Returns the numbers of steps and of examples."""
        steps, examples = self._totals.numpy().tolist()
        return Sample("steps_total", steps), Sample("samples_total", examples)
