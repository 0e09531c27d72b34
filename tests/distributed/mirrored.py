"""MirroredStrategy in one process: N replicas at B rows follow one at N * B rows.

mirrored.py keras|tf_keras [stock cross-device ops]
"""

import functools
import importlib
import sys

import numpy as np
import tensorflow as tf

import strategies
from tests.support.assertions import assert_all_close, raises
from tests.support.checks import run_checks

keras = importlib.import_module(sys.argv[1])
ops = getattr(tf.distribute, sys.argv[2])() if len(sys.argv) > 2 else None
if ops is None:
    strategy = strategies.MirroredStrategy(num_replicas=3)
else:
    cpu = tf.config.list_physical_devices("CPU")[0]
    logical = [tf.config.LogicalDeviceConfiguration() for _ in range(3)]
    tf.config.set_logical_device_configuration(cpu, logical)
    strategy = strategies.MirroredStrategy([f"CPU:{n}" for n in range(3)], ops)
random = np.random.default_rng(0)
x = random.normal(size=[100, 6]).astype("float32")
y = random.integers(0, 3, size=[100])


def make_model():
    model = keras.Sequential([keras.layers.InputLayer([6]), keras.layers.Dense(8, "tanh")])
    model.add(keras.layers.Dense(3))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return model


@functools.cache
def trained():
    """Returns a model of one process, the strategy's, and both histories."""
    one = make_model()
    with strategy.scope():
        many = make_model()
    many.set_weights(one.get_weights())
    even = {"batch_size": 24, "epochs": 3, "shuffle": False, "verbose": 0}
    return one, many, *(model.fit(x[:96], y[:96], **even).history for model in (one, many))


def check_it_is_a_mirrored_strategy():
    assert isinstance(strategy, tf.distribute.MirroredStrategy)
    assert strategy.num_replicas_in_sync == 3


def check_training_follows_one_process():
    one, many, expected, found = trained()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-4, err_msg=name)
    assert_all_close(many.get_weights(), one.get_weights(), atol=1e-5)


def check_prediction_and_evaluation_give_the_numbers_of_one_process():
    one, many, *_ = trained()
    np.testing.assert_allclose(many.predict(x, verbose=0), one.predict(x, verbose=0), atol=1e-5)
    found, expected = (model.evaluate(x, y, verbose=0) for model in (many, one))
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def check_uneven_examples():
    """100 rows in batches of 24: of the last one's 4 rows a replica gets two and the others one,
    and of a batch of 1 two get none."""
    with strategy.scope():
        model = make_model()
    model.fit(x, y, batch_size=24, verbose=0)
    model.fit(x[:25], y[:25], batch_size=24, verbose=0)
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    strategies.verify_equal(strategy, model.variables)


def check_logical_cpus_are_not_made_after_the_start():
    with raises(ValueError, "a request for 4, but TensorFlow is already initialized with 3"):
        strategies.MirroredStrategy(num_replicas=4)


def check_two_ways_to_name_the_devices_are_refused():
    with raises(ValueError, "Received: both"):
        strategies.MirroredStrategy(["CPU:0"], num_replicas=1)


if __name__ == "__main__":
    run_checks(globals())
