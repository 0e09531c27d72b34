"""What trains under a strategy is created in its scope: what is not is an error, on every worker.

scope.py keras|tf_keras [mode]
"""

import contextlib
import importlib
import sys

import numpy as np
import tensorflow as tf

import strategies
from tests.support.assertions import raises
from tests.support.checks import run_checks

keras = importlib.import_module(sys.argv[1])
mode = {"mode": sys.argv[2]} if len(sys.argv) > 2 else {}
strategy = strategies.from_tf_config(**mode)
local_replicas = len(strategy.extended.worker_devices)
x, y = np.ones([16, 3], "float32"), np.ones([16, 1], "float32")
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)


def scope(inside):
    return strategy.scope() if inside else contextlib.nullcontext()


def make():
    return keras.Sequential([keras.layers.InputLayer([3]), keras.layers.Dense(1)])


def make_alike():
    """Makes a model with the same weights on all workers."""
    keras.utils.set_random_seed(1)
    return make()


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


def check_fit_of_a_model_from_outside_is_refused():
    for compiled_in, fitted_in in ((True, False), (True, True), (False, True)):
        with raises(ValueError, "scope"):
            fitted(False, compiled_in, fitted_in)


def check_a_loop_with_a_model_from_outside_is_refused():
    with raises(ValueError, "scope"):
        looped(False, True)


def check_an_update_of_a_variable_from_outside_is_refused_by_name():
    variable = tf.Variable(0.0, name="outsider")
    with raises(ValueError, "'outsider:0'", "created outside of the scope of"):
        strategy.extended.update(variable, lambda variable: variable.assign_add(1.0))


def check_an_optimizer_from_outside_is_refused():
    """Where a worker has one replica."""
    if local_replicas > 1:
        return
    with raises(ValueError, "scope"):
        fitted(True, False, False)
    with raises(ValueError, "scope"):
        fitted(True, True, False, optimizer_in=False)
    with raises(ValueError, "scope"):
        looped(True, False)
    with raises(ValueError, "scope"):
        looped(False, False)


def check_a_metric_from_outside_is_refused():
    """Where there are several workers."""
    if strategy.num_replicas_in_sync == local_replicas:
        return
    for compiled_in in (True, False):
        with raises(ValueError, "scope"):
            measured(compiled_in)


def check_a_frozen_layer_may_come_from_outside():
    frozen = make_alike()
    frozen.trainable = False
    with strategy.scope():
        model = keras.Sequential([frozen, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(x, y, batch_size=8, verbose=0)


def check_a_model_that_only_predicts_may_come_from_outside():
    outside = make_alike()
    with strategy.scope():
        assert outside.predict(x, batch_size=8, verbose=0).shape[1:] == (1,)


def check_weights_from_outside_are_the_same_on_all_workers():
    """Where workers train in step."""
    rank = strategies.worker_rank(strategy)
    frozen = make()
    frozen.trainable = False
    frozen.set_weights([np.full([3, 1], rank, "float32"), np.zeros([1], "float32")])
    with strategy.scope():
        model = keras.Sequential([frozen, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    calls = (
        lambda: model.fit(x, y, batch_size=8, verbose=0),
        lambda: model.evaluate(dataset, verbose=0),
        lambda: frozen.predict(x, batch_size=8, verbose=0),
    )
    is_checked = strategy.num_replicas_in_sync > local_replicas
    for call in calls:
        with scope(True):
            if is_checked:
                with raises(ValueError, "differ from those on worker 0", "the same weights on all"):
                    call()
            else:
                call()


def check_what_each_worker_counts_for_itself_may_come_from_outside():
    steps = tf.Variable(0, dtype=tf.int64)
    strategy.run(lambda: steps.assign_add(1))
    assert steps.numpy() == local_replicas


if __name__ == "__main__":
    run_checks(globals())
