"""What trains under a strategy is created in its scope: what is not is an error, on every worker.

scope.py keras|tf_keras [mode]
"""

import contextlib
import importlib
import sys

import numpy as np
import tensorflow as tf

import strategies

keras = importlib.import_module(sys.argv[1])
mode = {"mode": sys.argv[2]} if len(sys.argv) > 2 else {}
strategy = strategies.from_tf_config(**mode)
x, y = np.ones([16, 3], "float32"), np.ones([16, 1], "float32")
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)


def scope(inside):
    return strategy.scope() if inside else contextlib.nullcontext()


def make():
    return keras.Sequential([keras.layers.InputLayer([3]), keras.layers.Dense(1)])


def fitted(model_in, compiled_in, fitted_in, optimizer_in=None):
    with scope(model_in):
        model = make()
    with scope(compiled_in if optimizer_in is None else optimizer_in):
        optimizer = keras.optimizers.SGD(0.1)
    with scope(compiled_in):
        model.compile(optimizer, "mse", metrics=["mae"])
    with scope(fitted_in):
        model.fit(x, y, batch_size=8, verbose=0)


def looped(model_in, optimizer_in):
    with scope(model_in):
        model = make()
    with scope(optimizer_in):
        optimizer = keras.optimizers.SGD(0.1)

    def step(rows, labels):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(rows) - labels) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    run = tf.function(lambda batch: strategy.run(step, args=batch))
    for batch in strategy.experimental_distribute_dataset(dataset):
        run(batch)


def measured(compiled_in):
    metric = keras.metrics.MeanSquaredError()
    with scope(compiled_in):
        model = make()
        model.compile("sgd", "mse", metrics=[metric])
    with strategy.scope():
        model.evaluate(x, y, batch_size=8, verbose=0)


def updated():
    variable = tf.Variable(0.0, name="outsider")
    strategy.extended.update(variable, lambda variable: variable.assign_add(1.0))


wrong = [
    lambda: fitted(False, True, False),
    lambda: fitted(False, True, True),
    lambda: fitted(False, False, True),
    lambda: looped(False, True),
    updated,
]
if len(strategy.extended.worker_devices) == 1:
    wrong += [
        lambda: fitted(True, False, False),
        lambda: fitted(True, True, False, optimizer_in=False),
        lambda: looped(True, False),
        lambda: looped(False, False),
    ]
if strategy.num_replicas_in_sync > len(strategy.extended.worker_devices):
    wrong += [lambda: measured(True), lambda: measured(False)]
for number, case in enumerate(wrong):
    try:
        case()
    except ValueError as error:
        assert "scope" in str(error), error
        if case is updated:
            assert "'outsider:0', created outside of it" in str(error), error
    else:
        raise AssertionError(f"case {number} was let through")

# What is only read, or counted on each worker for itself, may come from outside.
frozen = make()
frozen.trainable = False
with strategy.scope():
    model = keras.Sequential([frozen, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(x, y, batch_size=8, verbose=0)
outside = make()
with strategy.scope():
    assert outside.predict(x, batch_size=8, verbose=0).shape[1:] == (1,)
steps = tf.Variable(0, dtype=tf.int64)
strategy.run(lambda: steps.assign_add(1))
assert steps.numpy() == len(strategy.extended.worker_devices)
print("passed")
