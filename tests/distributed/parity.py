"""N workers at B rows each follow one process at N * B rows.

parity.py keras|tf_keras [replicas a worker] [fields of ReductionOptions as JSON]
"""

import importlib
import json
import sys

import numpy as np
import tensorflow as tf

import strategies
from tests.support import hosts
from tests.support.assertions import assert_all_close
from tests.support.checks import run_checks
from tests.support.keras_apis import optimizer_variables
from tests.support.reference import of_one_process

STEPS, ROWS, CLASSES, WORDS = 20, 8, 4, 50

hosts.pretend()
keras = importlib.import_module(sys.argv[1])
replicas = int(sys.argv[2]) if len(sys.argv) > 2 else 1
options = strategies.ReductionOptions(**json.loads(sys.argv[3] if len(sys.argv) > 3 else "{}"))
strategy = strategies.from_tf_config(num_replicas=replicas, options=options)


def dense_model():
    return keras.Sequential(
        [
            keras.layers.InputLayer([12]),
            keras.layers.Dense(16, "tanh"),
            keras.layers.Dense(CLASSES, kernel_regularizer=keras.regularizers.L2(0.01)),
        ]
    )


def embedding_model():
    return keras.Sequential(
        [
            keras.layers.InputLayer([6], dtype="int64"),
            keras.layers.Embedding(WORDS, 8),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(CLASSES),
        ]
    )


def dense_data(random, rows):
    return random.normal(size=[rows, 12]).astype("float32")


def embedding_data(random, rows):
    return random.integers(0, WORDS, size=[rows, 6])


def trained(make_model, make_optimizer, weights, x, y, batch_size):
    model = make_model()
    model.set_weights(weights)
    model.compile(
        make_optimizer(),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(x, y, batch_size=batch_size, shuffle=False, verbose=0).history
    return model, history


def follows_one_process(make_model, make_data, make_optimizer):
    random = np.random.default_rng(0)
    batch_size = ROWS * strategy.num_replicas_in_sync
    x = make_data(random, STEPS * batch_size)
    y = random.integers(0, CLASSES, size=[len(x)])
    shapes = [weight.shape for weight in make_model().get_weights()]
    weights = [random.normal(size=shape).astype("float32") * 0.3 for shape in shapes]
    arguments = make_model, make_optimizer, weights, x, y, batch_size

    def train_in_one_process():
        model, history = trained(*arguments)
        return model.get_weights(), history

    expected, one_history = of_one_process(train_in_one_process)
    with strategy.scope():
        many, many_history = trained(*arguments)
    assert not np.allclose(expected[0], weights[0], atol=1e-3), "nothing was trained"
    assert_all_close(many.get_weights(), expected, atol=1e-5, rtol=1e-5)
    for name, values in one_history.items():
        np.testing.assert_allclose(many_history[name], values, rtol=1e-5, err_msg=name)
    strategies.verify_equal(strategy, many.variables)
    strategies.verify_equal(strategy, optimizer_variables(many.optimizer))
    assert tf.distribute.has_strategy() is False


def sgd():
    return keras.optimizers.SGD(0.1, momentum=0.9)


def adam():
    return keras.optimizers.Adam(0.01)


def check_a_dense_model_with_sgd():
    follows_one_process(dense_model, dense_data, sgd)


def check_a_dense_model_with_adam():
    follows_one_process(dense_model, dense_data, adam)


def check_an_embedding_with_sgd():
    follows_one_process(embedding_model, embedding_data, sgd)


def check_an_embedding_with_adam():
    follows_one_process(embedding_model, embedding_data, adam)


if __name__ == "__main__":
    run_checks(globals())
