"""Whose loss is not divided by the number of replicas hears of it; nobody else does."""

import importlib
import logging

import numpy as np
import pytest
import tensorflow as tf

import strategies

pytestmark = pytest.mark.training
X = np.arange(24, dtype="float32").reshape(8, 3)
Y = X.sum(1, keepdims=True)
WARNING = "A loss must be divided by the number of replicas"


def mean_of_functions(model, y, predicted):
    return tf.reduce_mean(tf.square(y - predicted))


def by_a_class(model, y, predicted):
    return model.keras.losses.MeanSquaredError(**model.reduction)(y, predicted)


def by_the_strategy(model, y, predicted):
    number = tf.distribute.get_strategy().num_replicas_in_sync
    return mean_of_functions(model, y, predicted) / number


def by_the_context(model, y, predicted):
    context = tf.distribute.get_replica_context()
    return mean_of_functions(model, y, predicted) / context.num_replicas_in_sync


def by_tensorflow(model, y, predicted):
    return tf.nn.compute_average_loss(tf.reduce_mean(tf.square(y - predicted), axis=-1))


def by_compiled_loss(model, y, predicted):
    return model.keras.Model.compute_loss(model, y=y, y_pred=predicted)


# Read once, as scripts do to compute the global batch size.
NUMBER = {}


def a_sum_divided_by_the_batch(model, y, predicted):
    loss = model.keras.losses.MeanSquaredError(reduction="sum")
    return loss(y, predicted) / NUMBER["batch"]


def an_average_of_a_given_batch(model, y, predicted):
    losses = tf.reduce_mean(tf.square(y - predicted), axis=-1)
    return tf.nn.compute_average_loss(losses, global_batch_size=NUMBER["batch"])


def a_mean_divided_by_what_was_read(model, y, predicted):
    return 3 * mean_of_functions(model, y, predicted) / NUMBER["replicas"] + 1e-3


def a_mean_by_the_shape(model, y, predicted):
    total = tf.reduce_sum(tf.square(y - predicted))
    return total / tf.cast(tf.shape(y)[0], tf.float32)


def a_masked_mean(model, y, predicted):
    mask = tf.cast(y > 0, tf.float32)
    return tf.reduce_sum(mask * tf.square(y - predicted)) / tf.reduce_sum(mask)


@pytest.fixture(params=["keras", "tf_keras"])
def keras(request):
    return importlib.import_module(request.param)


@pytest.fixture
def warnings(caplog):
    """Returns a function that tells how many times the warning was logged."""
    logging.getLogger("absl").propagate = True
    caplog.set_level(logging.WARNING)
    return lambda: sum(WARNING in record.getMessage() for record in caplog.records)


def model_of(
    keras, loss_of, *, has_step=False, has_loss=False, replicas=2, decorate=lambda f: f, **options
):
    class Own(keras.Model):
        """A model that makes its loss, or its steps, by itself."""

        def __init__(self):
            super().__init__()
            self.keras = keras
            # tf_keras wants to be told by those who do not leave it to `fit`.
            is_new = keras.__name__ == "keras"
            self.reduction = {} if is_new else {"reduction": "sum_over_batch_size"}
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

        if has_step:

            @decorate
            def train_step(self, data):
                x, y = data
                with tf.GradientTape() as tape:
                    loss = loss_of(self, y, self(x))
                gradients = tape.gradient(loss, self.trainable_variables)
                self.optimizer.apply_gradients(
                    zip(gradients, self.trainable_variables, strict=True)
                )
                return {"loss": loss}

        if has_loss:

            def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, **options):
                return loss_of(self, y, y_pred)

    with strategies.MirroredStrategy(["CPU:0", "CPU:1"][:replicas]).scope():
        model = Own()
        model.dense.build([None, 3])
        model.compile(keras.optimizers.SGD(1e-4), "mse", **options)
    return model


@pytest.mark.in_turn
@pytest.mark.parametrize("own", ["has_step", "has_loss"])
def test_a_mean_that_nobody_divides(keras, own, warnings):
    model = model_of(keras, mean_of_functions, **{own: True})
    model.fit(X, Y, batch_size=4, epochs=2, verbose=0)
    assert warnings() == 1


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "loss_of", [by_the_strategy, by_the_context, by_tensorflow, by_compiled_loss]
)
def test_a_step_that_divides_its_loss(keras, loss_of, warnings):
    model = model_of(keras, loss_of, has_step=True)
    model.fit(X, Y, batch_size=4, verbose=0)
    assert warnings() == 0


@pytest.mark.in_turn
@pytest.mark.parametrize("loss_of", [by_the_strategy, by_compiled_loss])
def test_a_loss_that_is_divided(keras, loss_of, warnings):
    model = model_of(keras, loss_of, has_loss=True)
    model.fit(X, Y, batch_size=4, verbose=0)
    assert warnings() == 0


def read_before(strategy):
    NUMBER["replicas"] = strategy.num_replicas_in_sync
    NUMBER["batch"] = 2 * NUMBER["replicas"]


@pytest.mark.each_value
@pytest.mark.parametrize(
    "loss_of",
    [a_sum_divided_by_the_batch, an_average_of_a_given_batch, a_mean_divided_by_what_was_read],
)
def test_a_count_that_was_read_before_the_step(keras, loss_of, warnings):
    model = model_of(keras, loss_of, has_step=True)
    read_before(model.distribute_strategy)
    model.fit(X, Y, batch_size=4, verbose=0)
    assert warnings() == 0


@pytest.mark.each_value
@pytest.mark.parametrize("loss_of", [mean_of_functions, a_mean_by_the_shape, a_masked_mean])
def test_a_mean_that_nobody_divides_by_a_count_that_was_read_before(keras, loss_of, warnings):
    model = model_of(keras, loss_of, has_step=True)
    read_before(model.distribute_strategy)
    model.fit(X, Y, batch_size=4, verbose=0)
    assert warnings() == 1


@pytest.mark.in_turn
def test_a_sum_needs_no_count(keras, warnings):
    def a_sum(model, y, predicted):
        return tf.reduce_sum(tf.square(y - predicted)) / 4

    model = model_of(keras, a_sum, has_loss=True)
    model.fit(X, Y, batch_size=4, verbose=0)
    assert warnings() == 0


def test_a_class_of_keras_divides(warnings):
    import keras

    model = model_of(keras, by_a_class, has_step=True)
    model.fit(X, Y, batch_size=4, verbose=0)
    assert warnings() == 0


def test_one_replica_has_nothing_to_divide(keras, warnings):
    model = model_of(keras, mean_of_functions, has_step=True, replicas=1)
    model.fit(X, Y, batch_size=4, verbose=0)
    assert warnings() == 0


@pytest.mark.in_turn
def test_a_step_that_is_run_eagerly_is_told_once(keras, warnings):
    model = model_of(keras, mean_of_functions, has_step=True, run_eagerly=True)
    model.fit(X, Y, batch_size=4, epochs=2, verbose=0)
    assert warnings() == 1


@pytest.mark.in_turn
def test_the_steps_of_a_function_that_is_not_traced_anew_say_nothing(keras, warnings):
    model = model_of(keras, by_the_strategy, has_step=True, decorate=tf.function)
    for _ in range(2):
        model.train_function = None
        model.fit(X, Y, batch_size=4, verbose=0)
    assert warnings() == 0


def test_an_evaluation_that_multiplies_what_nobody_divided(warnings):
    import keras

    model = model_of(keras, mean_of_functions, has_loss=True)
    loss = model.evaluate(X, Y, batch_size=4, verbose=0)
    assert loss == pytest.approx(2 * np.mean((model.predict(X, verbose=0) - Y) ** 2), rel=1e-5)
    assert warnings() == 1


def test_what_makes_no_loss_says_nothing(keras, warnings):
    model = model_of(keras, mean_of_functions, has_step=True, has_loss=True)
    model.predict(X, batch_size=4, verbose=0)
    assert warnings() == 0


@pytest.mark.in_turn
def test_the_gradients_are_as_many_times_as_large_as_is_said(keras, warnings):
    moved = []
    for replicas in 1, 2:
        model = model_of(keras, mean_of_functions, has_step=True, replicas=replicas)
        model.dense.kernel.assign(tf.ones([3, 1]))
        model.fit(X, 0 * Y, batch_size=8, verbose=0)
        moved.append(1 - model.dense.kernel.numpy())
    np.testing.assert_allclose(moved[1], 2 * moved[0], rtol=1e-4)
    assert warnings() == 1


def scalar_function(y, predicted):
    return tf.reduce_mean(tf.square(y - predicted))


def of_rows(y, predicted):
    return tf.reduce_mean(tf.square(y - predicted), axis=-1)


def compiled(loss, *, regularizer=None, replicas=2):
    import keras

    with strategies.MirroredStrategy(["CPU:0", "CPU:1"][:replicas]).scope():
        model = keras.Sequential(
            [
                keras.layers.InputLayer([3]),
                keras.layers.Dense(1, kernel_initializer="ones", kernel_regularizer=regularizer),
            ]
        )
        model.compile(keras.optimizers.SGD(1e-4), loss)
    return model


def scalar_losses():
    import keras

    class Scalar(keras.losses.Loss):
        def call(self, y, predicted):
            return scalar_function(y, predicted)

    return [scalar_function, Scalar(), keras.losses.Dice(), "dice"]


@pytest.mark.each_value
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("regularizer", [None, "l2"])
def test_a_compiled_loss_that_is_one_number(number, regularizer, warnings):
    model = compiled(scalar_losses()[number], regularizer=regularizer)
    model.fit(X, Y, batch_size=4, epochs=2, verbose=0)
    assert warnings() == 1


def test_the_gradients_of_a_compiled_loss_that_is_one_number(warnings):
    moved = []
    for replicas in 1, 2:
        model = compiled(scalar_function, replicas=replicas)
        model.fit(X, 0 * Y, batch_size=8, verbose=0)
        moved.append(1 - model.layers[-1].kernel.numpy())
    np.testing.assert_allclose(moved[1], 2 * moved[0], rtol=1e-4)
    assert warnings() == 1


def test_the_logs_of_a_compiled_loss_that_is_not_reduced(warnings):
    import keras

    model = compiled(keras.losses.MeanSquaredError(reduction="none"))
    loss = model.evaluate(X, Y + 1, batch_size=4, verbose=0)
    assert loss == pytest.approx(2, rel=1e-5)
    assert warnings() == 1


@pytest.mark.in_turn
@pytest.mark.parametrize("regularizer", [None, "l2"])
def test_compiled_losses_that_keras_divides(regularizer, warnings):
    import keras

    for loss in "mse", of_rows, keras.losses.Huber(), keras.losses.Huber(reduction="sum"):
        model = compiled(loss, regularizer=regularizer)
        model.fit(X, Y, batch_size=4, verbose=0)
        model.evaluate(X, Y, batch_size=4, verbose=0)
    assert warnings() == 0
