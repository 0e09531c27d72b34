"""MirroredStrategy in one process: N replicas at B rows follow one at N * B rows.

mirrored.py keras|tf_keras [stock cross-device ops]
"""

import importlib
import sys

import numpy as np
import tensorflow as tf

import strategies

keras = importlib.import_module(sys.argv[1])
ops = getattr(tf.distribute, sys.argv[2])() if len(sys.argv) > 2 else None
if ops is None:
    strategy = strategies.MirroredStrategy(num_replicas=3)
else:
    cpu = tf.config.list_physical_devices("CPU")[0]
    logical = [tf.config.LogicalDeviceConfiguration() for _ in range(3)]
    tf.config.set_logical_device_configuration(cpu, logical)
    strategy = strategies.MirroredStrategy([f"CPU:{n}" for n in range(3)], ops)
assert isinstance(strategy, tf.distribute.MirroredStrategy)
assert strategy.num_replicas_in_sync == 3
random = np.random.default_rng(0)
x = random.normal(size=[100, 6]).astype("float32")
y = random.integers(0, 3, size=[100])


def make_model():
    model = keras.Sequential([keras.layers.InputLayer([6]), keras.layers.Dense(8, "tanh")])
    model.add(keras.layers.Dense(3))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return model


one = make_model()
with strategy.scope():
    many = make_model()
many.set_weights(one.get_weights())
even = {"batch_size": 24, "epochs": 3, "shuffle": False, "verbose": 0}
histories = [model.fit(x[:96], y[:96], **even) for model in (one, many)]
for name, values in histories[0].history.items():
    np.testing.assert_allclose(histories[1].history[name], values, rtol=1e-4, err_msg=name)
for expected, found in zip(one.get_weights(), many.get_weights(), strict=True):
    np.testing.assert_allclose(found, expected, atol=1e-5)
np.testing.assert_allclose(many.predict(x, verbose=0), one.predict(x, verbose=0), atol=1e-5)
np.testing.assert_allclose(many.evaluate(x, y, verbose=0), one.evaluate(x, y, verbose=0), rtol=1e-4)
# 100 rows in batches of 24: of the last one's 4 rows a replica gets two and the others one, and
# of a batch of 1 two get none.
many.fit(x, y, batch_size=24, verbose=0)
many.fit(x[:25], y[:25], batch_size=24, verbose=0)
assert all(np.isfinite(weight).all() for weight in many.get_weights())
strategies.verify_equal(strategy, many.variables)

try:
    strategies.MirroredStrategy(num_replicas=4)
except ValueError as error:
    assert "Received: a wish for 4, and there are 3 for good" in str(error)
else:
    raise AssertionError("logical CPUs were made after the start")
try:
    strategies.MirroredStrategy(["CPU:0"], num_replicas=1)
except ValueError as error:
    assert "Received: both" in str(error)
else:
    raise AssertionError("two ways to name the devices")
print("passed")
