"""Gradual warm-up of the learning rate for training with several replicas."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from strategies.callbacks.base import Callback
from strategies.compat.keras import inner_optimizer, optimizers_of


class LearningRateWarmup(Callback):
    """Warms up the learning rate, from one replica's to that of all replicas.

    N replicas train on batches N times as large, in fewer steps. A learning rate N times as large
    makes up for this, if it is not applied from the first step (Goyal et al. 2017, arXiv
    1706.02677). Step t uses the rate `learning_rate * (1 + (scale - 1) * t / steps)`; from step
    `steps` on the rate is `learning_rate * scale`, and other callbacks may change it.

    Compile the model with the learning rate of one replica, a plain number. If a model has several
    optimizers, as a GAN does, each is warmed up from its own rate over its own steps.

        model.compile(keras.optimizers.SGD(0.1), ...)
        model.fit(..., callbacks=[strategies.callbacks.LearningRateWarmup(epochs=5)])

    Args:
      steps: the length of the warm-up in steps of the optimizer; with
        `gradient_accumulation_steps`, in its updates.
      epochs: the length of the warm-up in epochs, instead of `steps`. Keras must know the number of
        steps in an epoch.
      scale: the factor by which the rate is multiplied. None means the number of replicas in sync.
      learning_rate: the learning rate of one replica, for every optimizer. None means each
        optimizer's own rate when training begins; required if training resumes within the warm-up
        (from a backup).

    Raises:
      ValueError: unless exactly one of `steps` and `epochs` is given, or if a number is not above
        0.
    """

    runs_on_all_workers = True

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
                f"Exactly one of steps and epochs must be given. Received: steps={steps!r}, "
                f"epochs={epochs!r}."
            )
        numbers = {"steps": steps, "epochs": epochs, "scale": scale, "learning_rate": learning_rate}
        for name, value in numbers.items():
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0. Received: {value!r}.")
        self._epochs = epochs
        self._steps = steps
        self._scale = scale
        self._base = learning_rate
        self._ramps: list[_Ramp] = []

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Determines the initial learning rate and the number of warm-up steps.

        Raises:
          ValueError: if an optimizer's learning rate is not a plain number, the number of steps
            is not known, or training resumes and the initial learning rate is not known.
        """
        former = {id(ramp.optimizer): ramp for ramp in self._ramps}
        optimizers = {id(one): one for one in map(inner_optimizer, optimizers_of(self.model))}
        self._ramps = [former.get(id(one)) or self._ramp_of(one) for one in optimizers.values()]
        for ramp in self._ramps:
            ramp.is_over = None

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Sets the learning rate of this step."""
        for ramp in self._ramps:
            ramp.set_rate()

    def rate(self, step: int) -> float:
        """Returns the learning rate of a step, counted from 0.

        The rate is that of the optimizer given to `compile`. It is known once training has begun,
        or if `steps`, `scale` and `learning_rate` are given.

        Raises:
          ValueError: if the rate is not known.

        >>> warmup = LearningRateWarmup(4, scale=3, learning_rate=0.1)
        >>> [round(warmup.rate(step), 3) for step in range(6)]
        [0.1, 0.15, 0.2, 0.25, 0.3, 0.3]
        """
        ramp = self._ramps[0] if self._ramps else None
        base, scale, steps = (
            (ramp.base, ramp.scale, ramp.steps) if ramp else (self._base, self._scale, self._steps)
        )
        if base is None or scale is None or steps is None:
            raise ValueError(
                "The learning rates of a warm-up cannot be computed before training begins, unless "
                "steps, scale and learning_rate are all given. Received: a call before fit. Pass "
                "these arguments."
            )
        return _rate(base, scale, steps, step)

    def _ramp_of(self, optimizer: Any) -> _Ramp:
        current = _plain_learning_rate(optimizer)
        scale = self._scale or self.model.distribute_strategy.num_replicas_in_sync
        steps = self._steps or self._steps_of_epochs(optimizer)
        # The number of steps from one setting of the rate to the next.
        together = _number(getattr(self.model, "steps_per_execution", None) or 1)
        if self._base is None and 0 < _number(optimizer.iterations) < steps + together:
            raise ValueError(
                "A warm-up must begin at the learning rate for one replica. Received: an optimizer "
                f"after {_number(optimizer.iterations)} of {steps:g} steps, with another learning "
                "rate. Pass the initial one as the argument learning_rate."
            )
        return _Ramp(optimizer, self._base or current, scale, steps, together)

    def _steps_of_epochs(self, optimizer: Any) -> float:
        steps = (self.params or {}).get("steps")
        if steps is None:
            raise ValueError(
                "A warm-up in epochs requires a known number of steps per epoch. Received: a "
                "dataset of unknown length. Pass steps to the warm-up, or steps_per_epoch to fit."
            )
        updates = steps / (getattr(optimizer, "gradient_accumulation_steps", None) or 1)
        return max(1, round((self._epochs or 0) * updates))


@dataclasses.dataclass
class _Ramp:
    """The warm-up of one optimizer.

    Attributes:
      optimizer: the optimizer.
      base: the initial learning rate.
      scale: the factor by which the rate is multiplied in the end.
      steps: the number of steps of the warm-up.
      together: the number of steps that share one setting of the rate.
      is_over: whether the warm-up has ended; None until the first step is seen.
    """

    optimizer: Any
    base: float
    scale: float
    steps: float
    together: int
    is_over: bool | None = None

    def set_rate(self) -> None:
        """Sets the learning rate of this step."""
        if self.is_over:
            return
        done = _number(self.optimizer.iterations)
        if self.is_over is None:
            # Training that resumes after the warm-up keeps its rate. A backup from right after
            # the last steps of the warm-up still has the rate of those steps.
            self.is_over = done >= self.steps + self.together
        if not self.is_over:
            self.optimizer.learning_rate = _rate(self.base, self.scale, self.steps, done)
            self.is_over = done >= self.steps


def _rate(base: float, scale: float, steps: float, done: int) -> float:
    return base * (1 + (scale - 1) * min(done / steps, 1.0))


def _plain_learning_rate(optimizer: Any) -> float:
    # The current value of a schedule looks like a number; the configuration shows the difference.
    configured = optimizer.get_config().get("learning_rate")
    if not isinstance(configured, (int, float, np.number)):
        raise ValueError(
            "The learning rate must be a plain number, because the warm-up sets it. Received: an "
            f"optimizer whose learning rate is {configured!r}. Make the warm-up a part of the "
            "schedule (CosineDecay has warmup_steps), or compile with a number."
        )
    return float(configured)


def _number(value: Any) -> int:
    return int(value.numpy() if hasattr(value, "numpy") else value)
