"""Logs of a user's own step; under every strategy: merged_logs_test.py."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies

Y = np.arange(8, dtype="float32")[:, None]


class Deep(keras.Model):
    """With more operations in a row than Python has frames, and logs that are not metrics."""

    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(1, kernel_initializer="zeros")
        self.error = keras.metrics.RootMeanSquaredError()

    def call(self, x):
        y = self.layer(x)
        for _ in range(1500):
            y = y + 0.0
        return y

    def train_step(self, data):
        x, y = data
        found = self(x)
        self.error.update_state(y, found)
        root = self.error.result()
        return {"squared": tf.reduce_mean(tf.square(y - found)), "root": root, "twice": 2 * root}


@pytest.mark.slow
def test_a_model_may_be_deep():
    strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = Deep()
        model.compile("sgd")
    logs = model.fit(Y, Y, batch_size=8, shuffle=False, verbose=0).history
    square = float(np.mean(Y**2))
    expected = {"squared": square, "root": square**0.5, "twice": 2 * square**0.5}
    assert {name: round(value, 3) for name, (value,) in logs.items()} == {
        name: round(value, 3) for name, value in expected.items()
    }
