"""What a step of Keras builds, logs and normalizes under a strategy, beside one process."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import numpy as np
import tensorflow as tf

from tests.support.assertions import assert_all_close

ROWS = 8
X = np.random.default_rng(0).normal(size=[ROWS, 3]).astype("float32")
Y = np.arange(ROWS, dtype="float32")[:, None]


def scope_of(strategy: tf.distribute.Strategy | None) -> Any:
    """Returns the strategy's scope; of none for one process."""
    return contextlib.nullcontext() if strategy is None else strategy.scope()


def check_models_built_by_fit(keras: Any, strategy: tf.distribute.Strategy) -> None:
    """Their initial values are those of one process, though a script has drawn numbers before."""

    class Nested(keras.Model):
        def __init__(self, **kwargs: Any):
            super().__init__(**kwargs)
            self.first = keras.layers.Dense(4, "relu")
            self.drop = keras.layers.Dropout(0.5)
            self.last = keras.layers.Dense(1)

        def call(self, x: Any, training: bool | None = None) -> Any:
            return self.last(self.drop(self.first(x), training=training))

    def deferred() -> Any:
        layers = keras.layers
        return keras.Sequential([layers.Dense(4), layers.Dropout(0.5), layers.Dense(1)])

    def initial(make: Any, strategy: tf.distribute.Strategy | None) -> list[np.ndarray]:
        keras.utils.set_random_seed(7)
        with scope_of(strategy):
            keras.layers.Dense(2).build([None, 3])
            model = make()
            model.compile(keras.optimizers.SGD(0.0), "mse")
        random.shuffle([1, 2, 3])
        model.fit(X, Y, batch_size=ROWS, verbose=0, shuffle=False)
        return model.get_weights()

    for make in (deferred, Nested):
        expected = initial(make, None)
        assert np.abs(expected[0]).sum() > 0
        assert_all_close(initial(make, strategy), expected, atol=1e-7)


def check_logs_of_merged_values(keras: Any, strategy: tf.distribute.Strategy, eager: bool) -> None:
    """They are logged once under any key, and a replica's own share of a loss is summed.

    Keras 3 takes the mean of the shares. Eagerly it logs the mean of the replicas' results, too.
    """
    op = "SUM" if keras.__name__ == "tf_keras" else "MEAN"

    class Model(keras.Model):
        def __init__(self, **kwargs: Any):
            super().__init__(**kwargs)
            self.layer = keras.layers.Dense(1, kernel_initializer="zeros")
            self.error = keras.metrics.RootMeanSquaredError()

        @property
        def metrics(self) -> list[Any]:
            return [self.error]

        def call(self, x: Any) -> Any:
            return self.layer(x)

        def train_step(self, data: Any) -> dict[str, Any]:
            logs = self.test_step(data)
            return {**logs, "rate": self.optimizer.learning_rate}

        def test_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            self.error.update_state(y, self(x))
            squares = tf.square(y - self(x))
            share = tf.reduce_sum(squares) / ROWS if op == "SUM" else tf.reduce_mean(squares)
            context = tf.distribute.get_replica_context()
            return {
                "RMSE": self.error.result(),
                "squared": self.error.result() ** 2,
                "share": share,
                "all": context.all_reduce(op, share),
                "mixed": self.error.result() * share,
            }

    with strategy.scope():
        model = Model()
        model.compile(keras.optimizers.SGD(0.5), steps_per_execution=1, run_eagerly=eager)
    square = float((Y**2).mean())
    expected = {
        "RMSE": square**0.5,
        "squared": square,
        "share": square,
        "all": square,
        "mixed": square**1.5,
    }
    seen: list[dict[str, float]] = []
    told = keras.callbacks.LambdaCallback(on_train_batch_end=lambda _, logs: seen.append(logs))
    options = {"batch_size": ROWS, "verbose": 0}
    history = model.fit(X, Y, epochs=2, callbacks=[told], shuffle=False, **options).history
    for logs in ({name: values[-1] for name, values in history.items()}, seen[-1]):
        assert set(logs) == {*expected, "rate"}
        for name, value in {**expected, "rate": 0.5}.items():
            np.testing.assert_allclose(logs[name], value, rtol=1e-5, err_msg=name)
    for name, value in model.evaluate(X, Y, return_dict=True, **options).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, err_msg=name)


def check_ragged_inputs_of_a_subclassed_model(keras: Any, strategy: tf.distribute.Strategy) -> None:
    """Such a model, built or not, trains and evaluates as in one process."""

    class Model(keras.Model):
        def __init__(self, **kwargs: Any):
            super().__init__(**kwargs)
            self.layer = keras.layers.Dense(1, kernel_initializer="ones")

        def call(self, x: Any) -> Any:
            lengths = tf.cast(x.row_lengths(), tf.float32)
            return self.layer(tf.stack([tf.reduce_sum(x, axis=1), lengths], axis=1))

    values = np.arange(20, dtype="float32") / 20
    x = tf.RaggedTensor.from_row_lengths(values, [1, 2, 3, 4, 4, 3, 2, 1])
    data = tf.data.Dataset.from_tensor_slices((x, Y)).batch(ROWS)

    def train(strategy: tf.distribute.Strategy | None, is_built: bool) -> list[np.ndarray]:
        with scope_of(strategy):
            model = Model()
            if is_built:
                model(x)
            model.compile(keras.optimizers.SGD(0.01), "mse", metrics=["mae"])
        history = model.fit(data, epochs=2, shuffle=False, verbose=0).history
        logs = [np.asarray(history[name]) for name in ("loss", "mae")]
        return [*logs, np.asarray(model.evaluate(data, verbose=0)), *model.get_weights()]

    expected = train(None, is_built=True)
    for is_built in (True, False):
        assert_all_close(train(strategy, is_built), expected, rtol=1e-4, atol=1e-6)


def check_synchronized_normalization(keras: Any, strategy: tf.distribute.Strategy) -> None:
    """Its moments are those of the whole batch, in closed form, and so are its gradients."""

    def train(strategy: tf.distribute.Strategy | None, rate: float) -> list[np.ndarray]:
        with scope_of(strategy):
            layer = keras.layers.BatchNormalization(momentum=0.5, synchronized=True)
            last = keras.layers.Dense(1, kernel_initializer="ones")
            model = keras.Sequential([keras.layers.InputLayer([3]), layer, last])
            model.compile(keras.optimizers.SGD(rate), "mse")
        model.fit(X, Y, batch_size=ROWS, epochs=2, verbose=0, shuffle=False)
        return model.get_weights()

    _, _, mean, variance, *_ = train(strategy, rate=0.0)
    # Two steps with the same batch, from the initial values 0 and 1.
    np.testing.assert_allclose(mean, 0.75 * X.mean(axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(variance, 0.25 + 0.75 * X.var(axis=0), rtol=1e-5)
    found, expected = (train(each, rate=0.1) for each in (strategy, None))
    assert_all_close(found, expected, rtol=1e-4, atol=1e-5)


def check_what_layers_keep_of_a_call(
    keras: Any, strategy: tf.distribute.Strategy, is_synchronized: bool, in_fit: bool
) -> None:
    """Replicas that meet in a call go on with their own losses of layers, and their own tensors.

    Both halves of a batch are alike, so that a normalization of each replica is that of the batch.
    """
    halves = [np.tile(each[: ROWS // 2], [2, 1]) for each in (X, Y)]

    class Body(keras.Model):
        def __init__(self, **kwargs: Any):
            super().__init__(**kwargs)
            regularized = keras.layers.Dense(
                3, activity_regularizer="l2", kernel_initializer="ones"
            )
            self.first = regularized
            self.normalization = keras.layers.BatchNormalization(synchronized=is_synchronized)
            self.last = keras.layers.Dense(1, kernel_initializer="ones")

        def call(self, x: Any, training: bool | None = None) -> Any:
            self.hidden = self.first(x)
            self.several = [self.hidden]
            y = self.normalization(self.hidden, training=training)
            self.add_loss(tf.reduce_mean(tf.square(y)))
            return self.last(y)

        def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, **_: Any) -> Any:
            del x
            kept = tf.reduce_mean(tf.square(self.hidden)) + tf.reduce_mean(self.several[0])
            each = [tf.reduce_mean(tf.square(y - y_pred)), kept, *self.losses]
            replicas = tf.distribute.get_strategy().num_replicas_in_sync
            return tf.add_n(each) / replicas

        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    def train(strategy: tf.distribute.Strategy | None) -> list[np.ndarray]:
        with scope_of(strategy):
            model = Body()
            model.compile(keras.optimizers.SGD(0.1))
            model(halves[0][:1])
        data = tf.data.Dataset.from_tensor_slices(tuple(halves)).batch(ROWS)
        if in_fit:
            model.fit(data, epochs=2, shuffle=False, verbose=0)
            return model.get_weights()
        run = (strategy or tf.distribute.get_strategy()).run
        distributed = data if strategy is None else strategy.experimental_distribute_dataset(data)
        step = tf.function(lambda batch: run(model.train_step, args=(batch,)))
        for _ in range(2):
            for batch in distributed:
                step(batch)
        return model.get_weights()

    assert_all_close(train(strategy), train(None), rtol=1e-4, atol=1e-5)


def check_losses_of_a_model_called_before(keras: Any, strategy: tf.distribute.Strategy) -> None:
    """A loop of one's own reads them after replicas have met in another model."""
    halves = [np.tile(each[: ROWS // 2], [2, 1]) for each in (X, Y)]

    def train(strategy: tf.distribute.Strategy | None) -> list[np.ndarray]:
        layers = keras.layers
        regularized = {"activity_regularizer": "l2", "kernel_initializer": "ones"}
        with scope_of(strategy):
            first = keras.Sequential([layers.InputLayer([3]), layers.Dense(4, **regularized)])
            last = layers.Dense(1, kernel_initializer="ones")
            second = keras.Sequential(
                [layers.InputLayer([4]), layers.BatchNormalization(synchronized=True), last]
            )
            optimizer = keras.optimizers.SGD(0.1)
            variables = [*first.trainable_variables, *second.trainable_variables]
            optimizer.build(variables)

        def replica(x: tf.Tensor, y: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                found = second(first(x, training=True), training=True)
                loss = tf.reduce_sum(tf.square(y - found)) / ROWS
                loss += tf.nn.scale_regularization_loss(tf.add_n(first.losses))
            gradients = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(gradients, variables, strict=True))

        run = (strategy or tf.distribute.get_strategy()).run
        step = tf.function(lambda batch: run(replica, args=batch))
        data = tf.data.Dataset.from_tensors(tuple(halves)).unbatch().batch(ROWS)
        distributed = data if strategy is None else strategy.experimental_distribute_dataset(data)
        for _ in range(2):
            for batch in distributed:
                step(batch)
        return [*first.get_weights(), *second.get_weights()]

    assert_all_close(train(strategy), train(None), rtol=1e-4, atol=1e-5)
