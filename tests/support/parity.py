"""Models that N workers train at B rows each and one process at N * B rows, to be the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import strategies
from tests.support.assertions import assert_all_close
from tests.support.keras_apis import optimizer_variables
from tests.support.reference import of_one_process

ROWS, CLASSES, WORDS = 8, 4, 50


class Parity:
    """Compares what a strategy trains with what one process does.

    Args:
      keras: `keras` or `tf_keras`.
      strategy: the strategy of all workers.
      steps: how many are trained.
    """

    def __init__(self, keras: Any, strategy: tf.distribute.Strategy, steps: int):
        self.keras = keras
        self.strategy = strategy
        self.steps = steps
        self.batch_size = ROWS * strategy.num_replicas_in_sync

    def of_a_dense_model(self, make_optimizer: Callable[[], Any], **options: Any) -> Any:
        """Trains two Dense layers, one of them regularized; see `_of`."""
        layers = [
            self.keras.layers.InputLayer([12]),
            self.keras.layers.Dense(16, "tanh"),
            self.keras.layers.Dense(CLASSES, kernel_regularizer=self.keras.regularizers.L2(0.01)),
        ]

        def data(random: np.random.Generator, rows: int) -> np.ndarray:
            return random.normal(size=[rows, 12]).astype("float32")

        return self._of(layers, data, make_optimizer, **options)

    def of_a_wide_model(self, make_optimizer: Callable[[], Any], **options: Any) -> Any:
        """Trains a kernel whose gradient is large for the collectives, beside small ones."""
        layers = [
            self.keras.layers.InputLayer([400]),
            self.keras.layers.Dense(300, "relu"),
            self.keras.layers.Dense(CLASSES),
        ]

        def data(random: np.random.Generator, rows: int) -> np.ndarray:
            return random.normal(size=[rows, 400]).astype("float32") / 100

        return self._of(layers, data, make_optimizer, **options)

    def of_an_embedding(self, make_optimizer: Callable[[], Any], **options: Any) -> Any:
        """Trains the mean of six embedded words and a Dense layer; see `_of`."""
        layers = [
            self.keras.layers.InputLayer([6], dtype="int64"),
            self.keras.layers.Embedding(WORDS, 8),
            self.keras.layers.GlobalAveragePooling1D(),
            self.keras.layers.Dense(CLASSES),
        ]

        def data(random: np.random.Generator, rows: int) -> np.ndarray:
            return random.integers(0, WORDS, size=[rows, 6])

        return self._of(layers, data, make_optimizer, **options)

    def _of(
        self,
        layers: Sequence[Any],
        make_data: Callable[[np.random.Generator, int], np.ndarray],
        make_optimizer: Callable[[], Any],
        *,
        evaluates: bool = False,
        rtol: float = 1e-5,
    ) -> Any:
        """Asserts that weights, slots and logs are the same; returns the model of all workers.

        Args:
          layers: of a Sequential model, an input first.
          make_data: makes so many rows.
          make_optimizer: returns a new optimizer.
          evaluates: also compare what `evaluate` and `predict` return for rows that the workers
            cannot share evenly.
          rtol: of logs and slots.
        """
        random = np.random.default_rng(0)
        x = make_data(random, self.steps * self.batch_size)
        y = random.integers(0, CLASSES, size=[len(x)])
        configs = [self.keras.layers.serialize(layer) for layer in layers]

        def make_model() -> Any:
            return self.keras.Sequential([self.keras.layers.deserialize(c) for c in configs])

        shapes = [weight.shape for weight in make_model().get_weights()]
        weights = [random.normal(size=shape).astype("float32") * 0.3 for shape in shapes]

        def train() -> tuple[Any, dict[str, Any]]:
            model = make_model()
            model.set_weights(weights)
            loss = self.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(make_optimizer(), loss, metrics=["accuracy"])
            fitted = model.fit(x, y, batch_size=self.batch_size, shuffle=False, verbose=0)
            logs = dict(fitted.history)
            if evaluates:
                logs["evaluated"] = model.evaluate(x[:33], y[:33], batch_size=16, verbose=0)
                logs["predicted"] = model.predict(x[:33], batch_size=16, verbose=0)
            return model, logs

        def train_in_one_process() -> tuple[list, list, dict[str, Any]]:
            model, logs = train()
            return model.get_weights(), _states(model), logs

        expected, expected_states, expected_logs = of_one_process(train_in_one_process)
        with self.strategy.scope():
            model, logs = train()
        assert not np.allclose(expected[0], weights[0], atol=1e-3), "nothing was trained"
        assert_all_close(model.get_weights(), expected, atol=1e-5, rtol=1e-5)
        for name, values in expected_logs.items():
            np.testing.assert_allclose(logs[name], values, rtol=rtol, atol=1e-5, err_msg=name)
        strategies.verify_equal(self.strategy, model.variables)
        strategies.verify_equal(self.strategy, optimizer_variables(model.optimizer))
        assert_all_close(_states(model), expected_states, atol=1e-5, rtol=rtol)
        assert int(np.asarray(model.optimizer.iterations)) == self.steps
        assert tf.distribute.has_strategy() is False
        return model


def _states(model: Any) -> list[np.ndarray]:
    return [np.asarray(variable) for variable in optimizer_variables(model.optimizer)]
