"""What every cell of the compatibility table needs: models made, trained and looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

ROWS, BATCH, WIDTH, CLASSES = 64, 16, 6, 3


class Missing(Exception):
    """This Keras has no such feature."""


@dataclass(frozen=True)
class Cell:
    """One row of the table.

    Attributes:
      run: returns what was measured, by name. All of it is the same on all workers.
      tolerance: how near the numbers are to those of one process; None where they differ, for
        each replica has random numbers or statistics of its own.
    """

    run: Callable[[Lab], dict[str, Any]]
    tolerance: float | None = 1e-5

    @property
    def name(self) -> str:
        """The first line of what `run` says of itself."""
        return (self.run.__doc__ or "").splitlines()[0].rstrip(".")


class Lab:
    """Makes, trains and examines models under one strategy."""

    def __init__(self, keras: Any, strategy: tf.distribute.Strategy):
        self.keras = keras
        self.strategy = strategy
        self.random = np.random.default_rng(0)

    @property
    def is_keras_3(self) -> bool:
        """Whether it is Keras 3, not tf_keras."""
        return self.keras.__name__ == "keras"

    def rows(self, count: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
        """Returns points, and which of three classes each is in."""
        x = np.random.default_rng(1).normal(size=[count, WIDTH]).astype("float32")
        return x, (x @ np.random.default_rng(2).normal(size=[WIDTH, CLASSES])).argmax(1)

    def sequential(self, *layers: Callable[[], Any], **first: Any) -> Any:
        """Returns a model of the layers, made in scope, with the weights of every other run."""

        def make() -> Any:
            inputs = self.keras.layers.InputLayer([WIDTH]) if not first else None
            inputs = inputs or self.keras.layers.InputLayer(**first)
            return self.keras.Sequential([inputs, *(layer() for layer in layers)])

        return self.made(make)

    def made(self, make: Callable[[], Any]) -> Any:
        """Returns a model made in scope, with the weights of every other run."""
        with self.strategy.scope():
            model = make()
        self.reset(model)
        return model

    def reset(self, model: Any) -> None:
        """Gives a model the weights that it has in every run."""
        random = np.random.default_rng(3)
        model.set_weights(
            [
                random.normal(size=w.shape, scale=0.3).astype(w.dtype)
                if w.ndim > 1
                else w  # a bias of zeros, a variance of ones
                for w in model.get_weights()
            ]
        )

    def compile(self, model: Any, optimizer: Callable[[], Any] | None = None, **options: Any):
        """Compiles a model that tells classes apart, or what `options` says."""
        defaults = {
            "loss": self.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            "metrics": ["accuracy"],
        }
        with self.strategy.scope():
            made = self.sgd() if optimizer is None else optimizer()
            model.compile(optimizer=made, **{**defaults, **options})

    def sgd(self) -> Any:
        """Returns an optimizer with a state of its own, which forgives no doubled gradient."""
        return self.keras.optimizers.SGD(0.05, momentum=0.5)

    def fit(self, model: Any, *data: Any, falls: bool = True, **options: Any) -> dict[str, Any]:
        """Trains a model, and returns its logs and weights.

        Raises:
          AssertionError: if the loss is no number, or does not fall, or the weights stay.
        """
        before = model.get_weights()
        options = {"batch_size": BATCH, "epochs": 3, "shuffle": False, "verbose": 0} | options
        history = model.fit(*data, **options).history
        check(all(np.isfinite(values).all() for values in history.values()), f"logs {history}")
        if falls:
            check(history["loss"][-1] < history["loss"][0], f"the loss does not fall: {history}")
        after = model.get_weights()
        stayed = [np.array_equal(a, b) for a, b in zip(before, after, strict=False)]
        check(not stayed or not all(stayed), "no weight has changed")
        return {"logs": history, **self.weights(model)}

    def weights(self, *models: Any) -> dict[str, Any]:
        """Returns the weights and the state of the optimizer.

        Raises:
          AssertionError: if this worker's replicas differ, or a number is none.
        """
        held = [variable for model in models for variable in model.weights]
        state = [variable for model in models for variable in optimizer_state(model)]
        return {"weights": values_of(held), "optimizer": values_of(state)}


def optimizer_state(model: Any) -> list[Any]:
    """Returns the variables of a model's optimizer, if it has one."""
    optimizer = getattr(model, "optimizer", None)
    variables = getattr(optimizer, "variables", [])
    return list(variables() if callable(variables) else variables)


def values_of(variables: list[Any]) -> list[Any]:
    """Returns the values of variables whose copies on this worker's replicas are the same."""
    values = []
    for variable in variables:
        copies = [np.asarray(copy) for copy in copies_of(variable)]
        same = all(copy.tobytes() == copies[0].tobytes() for copy in copies)
        check(same, f"{variable.name} is not the same on all replicas of a worker")
        copies = copies[0].astype("float64")
        check(np.isfinite(copies).all(), f"{variable.name} has values that are no numbers")
        values.append(copies.tolist())
    return values


def copies_of(variable: Any) -> list[Any]:
    """Returns a variable's values, one for each replica of this worker."""
    held = variable if hasattr(variable, "values") else getattr(variable, "value", None)
    if hasattr(held, "values") and held.synchronization != tf.VariableSynchronization.ON_READ:
        return [one.numpy() for one in held.values]
    return [variable.numpy()]


def check(condition: Any, message: str) -> None:
    """Raises AssertionError with the message if the condition does not hold."""
    if not condition:
        raise AssertionError(message)
