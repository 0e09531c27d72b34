"""What layers keep of the rows of each replica, and scalars as numbers of Python.

states.py keras|tf_keras mirrored|central_storage|cluster|sync
"""

import importlib
import sys

import numpy as np
import tensorflow as tf

import strategies
from tests.support.assertions import assert_all_close, assert_close, raises
from tests.support.checks import run_checks

keras = importlib.import_module(sys.argv[1])
setup = sys.argv[2]
if setup == "mirrored":
    strategy = strategies.MirroredStrategy(num_replicas=2)
elif setup == "central_storage":
    strategy = strategies.CentralStorageStrategy(num_replicas=2)
else:
    strategy = strategies.from_tf_config(**({"mode": "sync"} if setup == "sync" else {}))
replicas = strategy.num_replicas_in_sync
ROWS, BATCHES = 3, 4
x = np.arange(BATCHES * ROWS * replicas, dtype="float32").reshape([-1, 1, 1])
zeros = np.zeros([len(x), 1], "float32")
arguments = {"batch_size": ROWS * replicas, "verbose": 0}


def summing_model():
    """Returns a model whose output is the sum of a row in all batches so far."""
    with strategy.scope():
        layer = keras.layers.SimpleRNN(
            1,
            activation="linear",
            use_bias=False,
            kernel_initializer="ones",
            recurrent_initializer="ones",
            stateful=True,
        )
        model = keras.Sequential([keras.Input(batch_shape=[ROWS, 1, 1]), layer])
        model.compile(keras.optimizers.SGD(0.0), "mse")
    return model


class Sum(keras.layers.Layer):
    """Adds up each row of all batches so far, as docs/training.md says."""

    def build(self, shape):
        if keras.__name__ == "keras":
            self.total = keras.Variable(
                np.zeros([ROWS, 1, 1], "float32"),
                trainable=False,
                synchronization="on_read",
                aggregation="only_first_replica",
            )
        else:
            self.total = self.add_weight(
                shape=[ROWS, 1, 1],
                initializer="zeros",
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )

    def call(self, x):
        total = self.total + x
        self.total.assign(total)
        return total


def sums():
    """Returns the sums of each row up to each batch."""
    return x.reshape([BATCHES, -1]).cumsum(axis=0)


def check_a_stateful_rnn_goes_on_from_the_states_of_each_replica():
    if keras.__name__ == "tf_keras":
        with strategy.scope(), raises(ValueError, "not yet supported with tf.distribute"):
            keras.layers.LSTM(1, stateful=True)
        return
    model = summing_model()
    (layer,) = model.layers
    for _ in range(2):
        loss = model.fit(x, zeros, shuffle=False, **arguments).history["loss"][0]
        assert_close(loss, (sums() ** 2).mean())
        layer.reset_state()
        assert_close(model.predict(x, **arguments), sums().reshape([-1, 1]))
        layer.reset_state()
    assert len(model.weights) == 2, "the states are not trained or saved"


def check_a_layer_can_keep_a_value_for_the_examples_of_each_replica():
    with strategy.scope():
        layer = Sum()
        model = keras.Sequential([layer])
        model.compile(loss="mse")
    assert_close(model.predict(x, **arguments), sums().reshape(x.shape))
    # Read, as in saving, is the value of the worker's first replica; assigned is that of all.
    first = ROWS * strategies.worker_rank(strategy)
    assert_close(layer.total.numpy(), sums()[-1, first : first + ROWS].reshape([ROWS, 1, 1]))
    layer.total.assign(np.ones([ROWS, 1, 1]))
    assert_close(model.predict(x, **arguments), 1 + sums().reshape(x.shape))


def check_a_trained_model_evaluates_as_the_same_model_does_once_it_is_loaded():
    """Each replica of tf_keras keeps its own moving means, of which files have the mean."""
    random = np.random.default_rng(0)
    rows = random.normal(size=[16 * replicas, 4]).astype("float32")
    labels = random.normal(size=[16 * replicas, 1]).astype("float32")
    fixed = {"batch_size": 4 * replicas, "verbose": 0}

    def make():
        keras.utils.set_random_seed(1)
        norm = keras.layers.BatchNormalization(momentum=0.5)
        return keras.Sequential([keras.Input([4]), norm, keras.layers.Dense(1)])

    def trained(validation_data):
        with strategy.scope():
            model = make()
            model.compile("sgd", "mse")
        options = {"shuffle": False, "validation_data": validation_data, **fixed}
        return model, model.fit(rows, labels, epochs=3, **options).history

    model, history = trained((rows, labels))
    other, _ = trained(None)
    assert_all_close(model.get_weights(), other.get_weights(), rtol=1e-5, atol=1e-6)
    loaded = make()
    loaded.set_weights(model.get_weights())
    expected = loaded(rows).numpy()
    other_expected = make()
    other_expected.set_weights(other.get_weights())
    batches = tf.data.Dataset.from_tensor_slices(rows).batch(4 * replicas)
    in_loop = tf.function(lambda batch: strategy.gather(strategy.run(other, args=(batch,)), 0))
    found = [in_loop(batch) for batch in strategy.experimental_distribute_dataset(batches)]
    np.testing.assert_allclose(
        np.concatenate(found), other_expected(rows).numpy(), rtol=1e-5, atol=1e-6
    )
    predicted = model.predict(rows, **fixed)
    np.testing.assert_allclose(predicted, expected, rtol=1e-5, atol=1e-6)
    loss = ((expected - labels) ** 2).mean()
    losses = [model.evaluate(rows, labels, **fixed), history["val_loss"][-1]]
    np.testing.assert_allclose(losses, loss, rtol=1e-5)


def check_scalars_are_numbers_of_python():
    """As programs log the learning rate, and callbacks compute with it."""
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.25), "mse")
        total = keras.metrics.Sum()
    model.fit(zeros, zeros, **arguments)
    rate, steps = model.optimizer.learning_rate, model.optimizer.iterations
    assert (float(rate), complex(rate)) == (0.25, 0.25), rate
    assert (float(steps), int(steps)) == (BATCHES, BATCHES), steps
    total.variables[0].assign(2.0)
    assert float(total.variables[0]) == int(total.variables[0]) == 2


if __name__ == "__main__":
    run_checks(globals())
