"""TerminateOnNaN, with workers that are only numbers; real ones are in tests/distributed."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import strategies
from strategies.callbacks import TerminateOnNaN, nan
from tests.support.fakes import FakeWorker

pytestmark = pytest.mark.training
KERAS = pytest.mark.parametrize("api", [keras, tf_keras])
X = np.ones([8, 2], "float32")


def model_of(api):
    inputs = api.Input([2])
    first = api.layers.Dense(1, name="first", use_bias=False)(inputs)
    second = api.layers.Dense(1, name="second", use_bias=False)(inputs)
    model = api.Model(inputs, [first, second])
    model.compile("sgd", ["mse", "mse"])
    return model


def fit(model, callback, y, **options):
    """Returns how many batches were trained on."""
    batches = []
    count = type(model).__module__.split(".")[0]
    callbacks = {"keras": keras, "tf_keras": tf_keras}[count].callbacks
    counter = callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: batches.append(batch))
    model.fit(
        X, [X[:, :1], y], batch_size=2, shuffle=False, verbose=0, callbacks=[callback, counter],
        **options,
    )  # fmt: skip
    return len(batches)


@pytest.mark.in_turn
@KERAS
def test_it_ends_in_the_step_and_names_the_variable(api, caplog):
    y = X[:, :1].copy()
    y[5] = np.inf  # the third batch
    model = model_of(api)
    assert fit(model, TerminateOnNaN(), y, epochs=3) == 3
    (message,) = said(caplog)
    assert message.startswith("Training ends at batch 2: gradients that are NaN or infinite")
    assert "on worker 0 in second/kernel" in message
    assert "first" not in message


class Gan:
    """Makes models whose steps apply gradients to two layers, by one optimizer or two."""

    @staticmethod
    def of(api, optimizers):
        class Model(api.Model):
            def __init__(self):
                super().__init__()
                self.one = api.layers.Dense(1, name="one")
                self.two = api.layers.Dense(1, name="two", use_bias=False)
                self.both = [api.optimizers.SGD(0.1) for _ in range(optimizers)]

            def call(self, x):
                return self.one(x) + self.two(x)

            def train_step(self, x):
                for optimizer, layer in zip(
                    self.both * (3 - len(self.both)), (self.one, self.two), strict=True
                ):
                    with tf.GradientTape() as tape:
                        loss = tf.reduce_mean(layer(x))
                        if layer is self.two:
                            loss /= tf.reduce_min(x)
                    variables = layer.trainable_variables
                    gradients = tape.gradient(loss, variables)
                    optimizer.apply_gradients(zip(gradients, variables, strict=True))
                return {"one": tf.constant(0.0)}

        model = Model()
        model(X[:2])
        for optimizer in model.both:
            optimizer.build(model.trainable_variables)
        model.compile("sgd")
        return model


@KERAS
@pytest.mark.parametrize("optimizers", [1, 2])
def test_every_optimizer_of_a_model_is_looked_at(api, optimizers, caplog):
    batches = []
    counter = api.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: batches.append(batch)
    )
    x = X.copy()
    x[3] = 0.0  # the second batch
    Gan.of(api, optimizers).fit(
        x, batch_size=2, shuffle=False, verbose=0, callbacks=[TerminateOnNaN(), counter]
    )
    assert batches == [0, 1]
    (message,) = said(caplog)
    assert "on worker 0 in" in message
    assert "two/kernel" in message
    assert "one" not in message


def said(caplog):
    """Returns this package's messages: TensorFlow warns of functions that it traces again."""
    return [record.getMessage() for record in caplog.records if record.name != "tensorflow"]


@pytest.mark.in_turn
@KERAS
def test_without_one_nothing_changes(api, caplog):
    model, other = model_of(api), model_of(api)
    other.set_weights(model.get_weights())
    assert fit(model, TerminateOnNaN(), X[:, :1], epochs=2) == 8
    fit(other, api.callbacks.Callback(), X[:, :1], epochs=2)
    for mine, theirs in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert not said(caplog)


@pytest.mark.in_turn
@KERAS
def test_it_is_used_again_and_leaves_the_optimizer_as_it_was(api):
    callback = TerminateOnNaN()
    for position in (7, 3):  # models of their own, for an optimizer keeps what is no number
        model = model_of(api)
        fit(model, api.callbacks.Callback(), X[:, :1])  # Keras has traced the step
        assert fit(model, callback, X[:, :1]) == 4
        y = X[:, :1].copy()
        y[position] = np.nan
        assert fit(model, callback, y, epochs=2) == position // 2 + 1
        assert not {"apply", "apply_gradients"} & set(vars(model.optimizer))


def test_it_looks_at_a_step_that_xla_compiles(caplog):
    with tf.device("CPU:1"):
        model = model_of(keras)
        model.compile("sgd", ["mse", "mse"], jit_compile=True)
        y = X[:, :1].copy()
        y[3] = np.nan
        assert fit(model, TerminateOnNaN(), y) == 2
    (message,) = said(caplog)
    assert "second/kernel" in message


def test_another_workers_gradient_ends_training_here(monkeypatch, caplog):
    def others(rank, mine):
        return [[0, 2, 0, 0]] if rank == 1 else mine

    worker = FakeWorker(0, 3, others)
    monkeypatch.setattr(nan, "collectives_of", lambda strategy: worker)
    assert fit(model_of(keras), TerminateOnNaN(), X[:, :1]) == 1
    assert "NaN or infinite on worker 1 in second/kernel." in caplog.messages[0]


def test_an_overflow_that_is_skipped_is_no_error(caplog):
    model = model_of(keras)
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(), initial_scale=2.0**127)
    model.compile(optimizer, ["mse", "mse"])
    assert fit(model, TerminateOnNaN(), X[:, :1] * 1e3) == 4
    assert not [each for each in caplog.messages if each.startswith("Training ends")]
    assert all(np.isfinite(each).all() for each in model.get_weights())


def test_a_replica_without_examples_counts_for_nothing(caplog):
    strategy = strategies.MirroredStrategy(["/cpu:0"])
    with strategy.scope():
        model = model_of(keras)
    callback = TerminateOnNaN()
    callback.set_model(model)

    def look(weight):
        strategy.extended._input_weights[0] = tf.constant(weight)
        strategy.run(
            lambda: callback._count_wrong([tf.constant([np.nan])] * 2, model.trainable_variables)
        )
        strategy.extended._input_weights.clear()
        return callback._take().tolist()

    assert look(0.0) == [0, 0, 0]
    assert look(1.0) == [1, 1, 0]
    callback.on_train_end()


def test_rows_of_an_embedding_are_looked_at(caplog):
    ids = keras.Input([1], dtype="int64")
    rows = strategies.DistributedEmbedding(2, name="rows")(ids)
    model = keras.Model(ids, keras.layers.Flatten()(rows))
    model.compile("sgd", "mse")
    y = np.ones([4, 2], "float32")
    y[3] = np.nan
    model.fit(np.arange(4)[:, None], y, batch_size=1, shuffle=False, verbose=0,
              callbacks=[TerminateOnNaN()])  # fmt: skip
    (message,) = [each for each in caplog.messages if each.startswith("Training ends")]
    assert "at batch 3: gradients that are NaN or infinite on worker 0 in rows/" in message


def test_workers_that_are_not_in_step_are_refused():
    class Apart:
        in_step = False

    class Strategy:
        extended = Apart()

    with pytest.raises(ValueError, match="requires workers that train in lockstep"):
        callback = TerminateOnNaN()
        callback.set_model(type("Model", (), {"distribute_strategy": Strategy()})())
