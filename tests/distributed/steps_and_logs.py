"""Steps are those that had data, and logged losses those of one process.

steps_and_logs.py keras|tf_keras mirrored|central|workers|sync|async|half_async|geo
"""

import importlib
import sys

import numpy as np
import tensorflow as tf

import strategies
from strategies.collectives.workers import collectives_of
from tests.support.assertions import assert_all_close
from tests.support.checks import run_checks

keras = importlib.import_module(sys.argv[1])
is_keras_3, kind = keras.__name__ == "keras", sys.argv[2]
if kind in ("mirrored", "central"):
    made = {"mirrored": strategies.MirroredStrategy, "central": strategies.CentralStorageStrategy}
    strategy = made[kind](num_replicas=2)
elif kind == "workers":
    strategy = strategies.from_tf_config()
else:
    strategy = strategies.from_tf_config(mode=kind, **({"geo_steps": 2} if kind == "geo" else {}))
is_in_step = kind not in ("async", "half_async", "geo")
workers = getattr(strategy.extended, "workers", collectives_of(strategy)).size
BATCHES, ROWS, EPOCHS = 3, 4, 2
random = np.random.default_rng(0)
x = random.normal(size=[BATCHES * ROWS, 3]).astype("float32")
y = random.normal(size=[BATCHES * ROWS, 1]).astype("float32")


class Log(keras.callbacks.Callback):
    """Counts the batches that ended."""

    def __init__(self):
        super().__init__()
        self.ended = 0

    def on_train_batch_end(self, batch, logs=None):
        self.ended += 1


def trained(is_known, optimizer=None, **options):
    """Returns a model that was trained on a generator's batches, and the batches that ended."""

    def batches():
        for n in range(BATCHES):
            yield x[n * ROWS : (n + 1) * ROWS], y[n * ROWS : (n + 1) * ROWS]

    # The size of a batch is known, so metrics count its examples without looking at the batch.
    dataset = tf.data.Dataset.from_generator(
        batches, output_signature=(tf.TensorSpec([ROWS, 3]), tf.TensorSpec([ROWS, 1]))
    )
    if is_known:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(BATCHES))
    keras.utils.set_random_seed(7)
    with strategy.scope():
        layers = keras.layers
        model = keras.Sequential([layers.InputLayer([3]), layers.Dense(4), layers.Dropout(0.5)])
        if kind not in ("async", "half_async"):
            model.add(layers.BatchNormalization())
        model.add(layers.Dense(1))
        schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
        make = optimizer or keras.optimizers.Adam
        model.compile(make(schedule), "mse", metrics=["mae"], **options)
    log = Log()
    model.fit(dataset, epochs=EPOCHS, verbose=0, shuffle=False, callbacks=[log])
    return model, log.ended


def number(value):
    value = getattr(value, "_value", value)
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value)


def assert_counts_steps(model, updates=BATCHES * EPOCHS):
    everyone = workers if kind in ("async", "half_async") else 1
    if everyone > 1:
        strategies.barrier(strategy)
    assert int(number(model.optimizer.iterations)) == updates * everyone
    mine = BATCHES * ROWS if is_in_step else BATCHES * ROWS // workers
    for metric in model.metrics:
        counts = [v for v in metric.variables if getattr(v, "path", v.name).find("count") >= 0]
        assert [float(number(v)) for v in counts] == [mine] * len(counts), metric.name
    for variable in model.non_trainable_variables:
        if "seed" in getattr(variable, "path", variable.name):
            assert number(variable)[1] == BATCHES * EPOCHS, number(variable)


def check_steps_are_counted_that_had_data():
    model, ended = trained(is_known=False)
    assert ended == BATCHES * EPOCHS
    assert_counts_steps(model)
    if is_in_step or kind == "geo" and workers == 1:
        expected, _ = trained(is_known=True)
        assert_all_close(model.get_weights(), expected.get_weights(), atol=1e-6)


def check_steps_of_an_execution_with_leftovers_are_counted():
    if is_keras_3:  # tf_keras asks for the number of steps
        assert_counts_steps(trained(is_known=False, steps_per_execution=2)[0])


def check_moving_averages_and_accumulated_gradients_have_no_more_steps():
    # In the others, central storage among them, accumulation raises an error: compatibility.md.
    if not is_keras_3 or kind not in ("mirrored", "workers"):
        return

    def adam(rate):
        return keras.optimizers.Adam(
            rate, use_ema=True, ema_momentum=0.5, gradient_accumulation_steps=2
        )

    model, _ = trained(is_known=False, optimizer=adam)
    expected, _ = trained(is_known=True, optimizer=adam)
    assert_counts_steps(model, BATCHES * EPOCHS // 2)
    found = [number(variable) for variable in model.optimizer.variables]
    expected = [number(variable) for variable in expected.optimizer.variables]
    assert_all_close(found, expected, atol=1e-6)


def check_steps_run_eagerly_are_counted():
    if is_in_step:
        assert_counts_steps(trained(is_known=False, run_eagerly=True)[0])


def logged(losses, weights=None, sample_weight=None):
    """Returns the logs of fit and evaluate on batches of 3, 3 and 1 examples."""
    inputs = keras.Input([3])
    options = {"kernel_initializer": "ones", "kernel_regularizer": keras.regularizers.L2(0.1)}
    outputs = {name: keras.layers.Dense(1, name=name, **options)(inputs) for name in losses}
    model = keras.Model(inputs, outputs if len(outputs) > 1 else outputs.popitem()[1])
    if len(losses) == 1:
        (losses,), weights = losses.values(), None
    model.compile(keras.optimizers.SGD(0.0), losses, loss_weights=weights)
    targets = y[:7] if not isinstance(losses, dict) else dict.fromkeys(losses, y[:7])
    options = {"batch_size": 3, "verbose": 0, "sample_weight": sample_weight}
    logs = model.fit(x[:7], targets, shuffle=False, **options).history
    results = model.evaluate(x[:7], targets, return_dict=True, **options)
    return {**{k: v[0] for k, v in logs.items()}, **{f"val_{k}": v for k, v in results.items()}}


def assert_logs_of_one_process(*arguments):
    with strategy.scope():
        found = logged(*arguments)
    expected = logged(*arguments)
    assert found.keys() == expected.keys(), (found, expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, err_msg=f"{name}: {found}")


def total():
    return keras.losses.MeanSquaredError(reduction="sum")


def check_the_log_of_a_sum():
    if not is_in_step:
        return
    squares = (x[:7].sum(1, keepdims=True) - y[:7]) ** 2
    with strategy.scope():
        found = logged({"a": total()})
    # Each batch's sum, and the regularizer, weighted by its examples.
    sums = [squares[:3].sum() * 3, squares[3:6].sum() * 3, squares[6:].sum()]
    np.testing.assert_allclose(found["loss"], sum(sums) / 7 + 0.3, rtol=1e-5)
    np.testing.assert_allclose(found["val_loss"], found["loss"], rtol=1e-5)
    assert_logs_of_one_process({"a": total()}, None, np.arange(7.0, dtype="float32"))


def check_the_logs_of_sums_and_means():
    if is_in_step:
        assert_logs_of_one_process({"a": total(), "b": "mse"}, {"a": 0.5, "b": 2.0})


def check_the_logs_of_several_means():
    if is_in_step:
        assert_logs_of_one_process({"a": "mse", "b": "mae"})


if __name__ == "__main__":
    run_checks(globals())
