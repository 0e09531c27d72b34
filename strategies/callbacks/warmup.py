"""Gradual warm-up of the learning rate to that of all replicas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from strategies._keras import inner_optimizer
from strategies.callbacks.base import Callback


class LearningRateWarmup(Callback):
    """Warms up the learning rate, from one replica's to that of all replicas.

    N replicas make batches N times as large, and fewer steps; N times the learning rate makes up
    for it, if it is not there from the first step (Goyal et al. 2017, arXiv 1706.02677). Step t
    has the rate `learning_rate * (1 + (scale - 1) * t / steps)`; from step `steps` on the rate is
    `learning_rate * scale`, and other callbacks may change it.

    Compile the model with one replica's learning rate, a plain number:

        model.compile(keras.optimizers.SGD(0.1), ...)
        model.fit(..., callbacks=[strategies.callbacks.LearningRateWarmup(epochs=5)])

    Args:
      steps: how many steps of the optimizer it takes.
      epochs: in place of `steps`; Keras has to know the number of steps in an epoch.
      scale: by what the rate is multiplied. None is the number of replicas in sync.
      learning_rate: one replica's. None is the optimizer's when training begins; training that
        goes on inside of the warm-up (from a backup) has to be told.

    Raises:
      ValueError: if not one of `steps` and `epochs` is given, or a number is not above 0.
    """

    def __init__(
        self,
        steps: int | None = None,
        *,
        epochs: float | None = None,
        scale: float | None = None,
        learning_rate: float | None = None,
    ):
        if (steps is None) == (epochs is None):
            raise ValueError(
                "A warm-up takes so many steps, or so many epochs. Received: "
                f"steps={steps!r}, epochs={epochs!r}. Give one of them."
            )
        numbers = {"steps": steps, "epochs": epochs, "scale": scale, "learning_rate": learning_rate}
        for name, value in numbers.items():
            if value is not None and not value > 0:
                raise ValueError(f"{name} is above 0. Received: {value!r}.")
        self._epochs = epochs
        self._steps = float(steps or 0)
        self._scale = scale or 0.0
        self._base = learning_rate or 0.0
        self._over: bool | None = None

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Determines the initial learning rate and the number of warm-up steps.

        Raises:
          ValueError: if the optimizer's learning rate is no plain number, the number of steps is
            not known, or training goes on and the first learning rate is not known.
        """
        current = _plain_learning_rate(self._optimizer)
        done = self._iterations()
        self._steps = self._steps or self._steps_of_epochs()
        self._scale = self._scale or self.model.distribute_strategy.num_replicas_in_sync
        if not self._base:
            if 0 < done <= self._steps:
                raise ValueError(
                    "A warm-up begins at one replica's learning rate. Received: an optimizer "
                    f"after {done} of {self._steps:g} steps, whose rate is another one. "
                    "Give it as the argument learning_rate."
                )
            self._base = current
        self._over = None

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Sets the learning rate of this step."""
        if self._over:
            return
        done = self._iterations()
        if self._over is None:
            # Training that goes on after the warm-up has the rate that it had. A backup may be
            # from just after the last steps inside, whose rate was still theirs.
            together = _number(getattr(self.model, "steps_per_execution", None) or 1)
            self._over = done >= self._steps + together
        if not self._over:
            self._optimizer.learning_rate = self.rate(done)
            self._over = done >= self._steps

    def rate(self, step: int) -> float:
        """Returns the learning rate of a step, counted from 0.

        >>> warmup = LearningRateWarmup(4, scale=3, learning_rate=0.1)
        >>> [round(warmup.rate(step), 3) for step in range(6)]
        [0.1, 0.15, 0.2, 0.25, 0.3, 0.3]
        """
        return self._base * (1 + (self._scale - 1) * min(step / self._steps, 1.0))

    def _iterations(self) -> int:
        return _number(self._optimizer.iterations)

    def _steps_of_epochs(self) -> float:
        steps = (self.params or {}).get("steps")
        if steps is None:
            raise ValueError(
                "A warm-up of epochs needs the number of steps in an epoch. Received: a dataset "
                "whose length is not known. Give the warm-up steps, or fit steps_per_epoch."
            )
        return max(1, round((self._epochs or 0) * steps))

    @property
    def _optimizer(self) -> Any:
        return inner_optimizer(self.model.optimizer)


def _plain_learning_rate(optimizer: Any) -> float:
    # What a schedule gives now looks like a number; the settings tell.
    configured = optimizer.get_config().get("learning_rate")
    if not isinstance(configured, (int, float, np.number)):
        raise ValueError(
            "A warm-up sets the learning rate, so it has to be a plain number. Received: an "
            f"optimizer whose learning rate is {configured!r}. Make the warm-up a part of the "
            "schedule (CosineDecay has warmup_steps), or compile with a number."
        )
    return float(configured)


def _number(value: Any) -> int:
    return int(value.numpy() if hasattr(value, "numpy") else value)
