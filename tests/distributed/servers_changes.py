"""What changes a variable on the servers, and what does not.

servers_changes.py keras|tf_keras MODE [other options of ParameterServerStrategy as JSON]
"""

import importlib
import json
import sys

import numpy as np
import tensorflow as tf

import strategies
from tests.support.checks import run_checks

keras, mode = importlib.import_module(sys.argv[1]), sys.argv[2]
options = json.loads(sys.argv[3] if len(sys.argv) > 3 else "{}")
if mode == "geo":
    options["geo_steps"] = 2
strategy = strategies.from_tf_config(mode=mode, **options)
extended = strategy.extended
rank, size = extended.workers.rank, extended.workers.size
layers, optimizers = keras.layers, keras.optimizers


def on_servers(variable):
    """Returns a variable's value when the steps of all workers are there."""
    strategies.barrier(strategy)
    value = extended.registry.read([shared(variable).remote])[0]
    strategies.barrier(strategy)
    return value


def shared(variable):
    """Returns the variable inside of Keras 3's."""
    return variable.value if hasattr(variable, "path") else variable


def made(all_layers, optimizer):
    """Returns a model of two inputs, from what makes its layers and its optimizer."""
    with strategy.scope():
        model = keras.Sequential([layers.InputLayer([2]), *all_layers()])
        model.compile(optimizer(), "mse")
    return model


def stepping(change):
    """Returns a training step that makes a change."""

    @tf.function
    def step(*inputs):
        strategy.run(change, inputs)

    return step


def check_moving_statistics_are_shared_and_kept_by_a_batch_without_rows():
    """The one row of each batch is the first worker's."""
    if mode == "sync":
        return
    model = made(
        lambda: [layers.BatchNormalization(momentum=0.5), layers.Dense(1)],
        lambda: optimizers.Adam(0.0),
    )
    normalization = model.layers[0]
    x, y = np.array([[3.0, 5.0]], np.float32), np.zeros([1, 1], np.float32)
    for _ in range(2):
        model.fit(x, y, batch_size=1, verbose=0)
    mean, variance = normalization.moving_mean, normalization.moving_variance
    shared_out = size if mode == "geo" else 1
    np.testing.assert_allclose(on_servers(mean), x[0] * 0.75 / shared_out, rtol=1e-6)
    np.testing.assert_allclose(on_servers(variance), 1 - 0.75 / shared_out, rtol=1e-6)


def check_a_step_without_rows_sends_nothing():
    if mode in ("geo", "sync"):
        return
    with strategy.scope():
        mean = tf.VariableAggregation.MEAN
        weight = tf.Variable(tf.zeros([3]), name="weight", aggregation=mean)
    step = stepping(lambda rows: weight.assign_add(tf.ones([3])))
    for rows in (rank, 1):
        step(tf.zeros([rows, 2]))
    np.testing.assert_array_equal(on_servers(weight), np.full([3], 2 * size - 1))


def check_models_in_turn_are_all_exchanged():
    if mode != "geo":
        return
    with strategy.scope():
        weights = [tf.Variable(tf.zeros([3]), name=name) for name in "gd"]
    steps = [stepping(lambda w=weight: w.assign_add(tf.ones([3]))) for weight in weights]
    for _ in range(2):
        for step in steps:
            step()
    for weight in weights:
        np.testing.assert_allclose(on_servers(weight), 2.0)


if __name__ == "__main__":
    run_checks(globals())
