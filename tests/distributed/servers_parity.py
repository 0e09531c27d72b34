"""mode="sync": N workers at B rows each follow one process at N * B rows.

servers_parity.py keras|tf_keras [options of ParameterServerStrategy as JSON]
"""

import importlib
import json
import sys

import numpy as np
import tensorflow as tf

import strategies
from tests.support.assertions import assert_all_close
from tests.support.checks import run_checks
from tests.support.keras_apis import optimizer_variables
from tests.support.reference import of_one_process

STEPS, ROWS, CLASSES, WORDS = 12, 8, 4, 50

keras = importlib.import_module(sys.argv[1])
options = json.loads(sys.argv[2] if len(sys.argv) > 2 else "{}")
strategy = strategies.from_tf_config(mode="sync", **{"min_slice_size": 32, **options})
assert isinstance(strategy, strategies.ParameterServerStrategy)
layers, optimizers = keras.layers, keras.optimizers


def dense_model():
    return keras.Sequential(
        [
            layers.InputLayer([12]),
            layers.Dense(16, "tanh"),
            layers.Dense(CLASSES, kernel_regularizer=keras.regularizers.L2(0.01)),
        ]
    )


def embedding_model():
    return keras.Sequential(
        [
            layers.InputLayer([6], dtype="int64"),
            layers.Embedding(WORDS, 8),
            layers.GlobalAveragePooling1D(),
            layers.Dense(CLASSES),
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
    history["evaluated"] = model.evaluate(x[:33], y[:33], batch_size=16, verbose=0)
    history["predicted"] = model.predict(x[:33], batch_size=16, verbose=0)
    return model, history


def states_of(model):
    return [variable.numpy() for variable in optimizer_variables(model.optimizer)]


def follows_one_process(make_model, make_data, make_optimizer):
    random = np.random.default_rng(0)
    batch_size = ROWS * strategy.num_replicas_in_sync
    # Behind the whole batches come rows that the replicas cannot share evenly.
    whole, uneven = STEPS * batch_size, strategy.num_replicas_in_sync + 1
    x = make_data(random, whole + uneven)
    y = random.integers(0, CLASSES, size=[len(x)])
    shapes = [weight.shape for weight in make_model().get_weights()]
    weights = [random.normal(size=shape).astype("float32") * 0.3 for shape in shapes]
    arguments = make_model, make_optimizer, weights, x[:whole], y[:whole]

    def train_in_one_process():
        model, history = trained(*arguments, batch_size)
        return model.get_weights(), history, states_of(model)

    expected, one_history, expected_states = of_one_process(train_in_one_process)
    with strategy.scope():
        many, many_history = trained(*arguments, batch_size)
    assert not np.allclose(expected[0], weights[0], atol=1e-3), "nothing was trained"
    assert_all_close(many.get_weights(), expected, atol=1e-5, rtol=1e-5)
    for name, values in one_history.items():
        np.testing.assert_allclose(many_history[name], values, rtol=1e-4, atol=1e-5, err_msg=name)
    strategies.verify_equal(strategy, many.variables)
    strategies.verify_equal(strategy, optimizer_variables(many.optimizer))
    assert_all_close(states_of(many), expected_states, atol=1e-5, rtol=1e-4)
    assert int(np.asarray(many.optimizer.iterations)) == STEPS
    many.fit(x[whole:], y[whole:], verbose=0)
    strategies.verify_equal(strategy, many.variables)
    is_sliced = options.get("min_slice_size", 32) and len(strategy.extended.servers) > 1
    assert ("rows 0-" in strategy.placement()) == bool(is_sliced), strategy.placement()
    assert tf.distribute.has_strategy() is False


def a_dense_model_follows(make_optimizer):
    follows_one_process(dense_model, dense_data, make_optimizer)


def check_a_dense_model_with_momentum():
    a_dense_model_follows(lambda: optimizers.SGD(0.1, momentum=0.9))


def check_a_dense_model_with_adagrad():
    a_dense_model_follows(lambda: optimizers.Adagrad(0.1))


def check_a_dense_model_with_a_schedule_and_clipping():
    decay = {"initial_learning_rate": 0.05, "decay_steps": 4, "decay_rate": 0.5}
    schedule = optimizers.schedules.ExponentialDecay
    a_dense_model_follows(lambda: optimizers.Adam(schedule(**decay), global_clipnorm=5.0))


def check_a_dense_model_with_adamw():
    a_dense_model_follows(lambda: optimizers.AdamW(0.01, weight_decay=0.1))


def check_an_embedding_with_sgd():
    follows_one_process(embedding_model, embedding_data, lambda: optimizers.SGD(0.1))


def check_an_embedding_with_adam():
    follows_one_process(embedding_model, embedding_data, lambda: optimizers.Adam(0.01))


if __name__ == "__main__":
    run_checks(globals())
