"""Half precision: loss scaling skips the steps that one process skips, on all workers alike.

mixed_precision.py keras|tf_keras [replicas a worker] [central]
"""

import contextlib
import importlib
import sys

import numpy as np

import strategies
from tests.support.assertions import assert_all_close
from tests.support.checks import run_checks

keras = importlib.import_module(sys.argv[1])
replicas = int(sys.argv[2]) if len(sys.argv) > 2 else 1
if "central" in sys.argv:
    strategy = strategies.CentralStorageStrategy(num_replicas=replicas)
else:
    strategy = strategies.from_tf_config(num_replicas=replicas, mode="sync")
is_central = isinstance(strategy, strategies.CentralStorageStrategy)
is_on_servers = isinstance(strategy, strategies.ParameterServerStrategy)
is_keras_3 = keras.__name__ == "keras"
random = np.random.default_rng(0)
n = strategy.num_replicas_in_sync
SCALE, GROWTH_STEPS = 2.0**18, 3
# The last batch has one row: other replicas have none.
x = random.normal(size=[64 * n + 1, 8]).astype("float32")
x[5] *= 30.0  # this row's gradients overflow in more steps than the others': on one replica
x[5 + 64 * n - 16] *= 10.0
# Keras divides the loss of that row by the number of replicas, as it does under TensorFlow's own
# MirroredStrategy: there is little to learn from it.
x[-1] = 0.0
y = x.sum(axis=1, keepdims=True)


def make_model():
    return keras.Sequential(
        [
            keras.layers.InputLayer([8]),
            keras.layers.Dense(16, "relu"),
            keras.layers.Dense(1, dtype="float32"),
        ]
    )


def make_optimizer(policy, accumulation=None):
    inner = keras.optimizers.SGD(0.001)
    if accumulation:
        inner = keras.optimizers.SGD(0.001, gradient_accumulation_steps=accumulation)
    if policy != "mixed_float16":
        return inner
    kind = keras.optimizers if is_keras_3 else keras.mixed_precision
    return kind.LossScaleOptimizer(inner, initial_scale=SCALE, dynamic_growth_steps=GROWTH_STEPS)


def scale_of(optimizer):
    scale = optimizer.dynamic_scale if is_keras_3 else optimizer.loss_scale
    return float(scale.numpy())


@contextlib.contextmanager
def global_policy(policy):
    keras.mixed_precision.set_global_policy(policy)
    try:
        yield
    finally:
        keras.mixed_precision.set_global_policy("float32")


def fitted(*optimizer):
    model = make_model()
    model.compile(make_optimizer(*optimizer), "mse")
    first = [np.full_like(w, 0.05) for w in model.get_weights()]
    first[0] += np.linspace(-0.1, 0.1, first[0].size).reshape(first[0].shape).astype("float32")
    model.set_weights(first)
    losses = model.fit(x, y, batch_size=16 * n, epochs=3, shuffle=False, verbose=0).history["loss"]
    return model, losses


def follows_one_process(*case):
    """Returns the model of one process, and the strategy's."""
    with global_policy(case[0]):
        one, expected = fitted(*case)
        with strategy.scope():
            many, losses = fitted(*case)
    np.testing.assert_allclose(losses, expected, rtol=0.02)
    assert_all_close(many.get_weights(), one.get_weights(), rtol=0.02, atol=2e-3)
    strategies.verify_equal(strategy, many.variables)
    return one, many


def skips_the_same_steps(*case):
    one, many = follows_one_process(*case)
    steps = [int(np.asarray(model.optimizer.iterations)) for model in (one, many)]
    scales = [scale_of(model.optimizer) for model in (one, many)]
    assert scales[0] < SCALE * 2 ** (15 // GROWTH_STEPS), "nothing overflowed"
    assert (steps[1], scales[1]) == (steps[0], scales[0]), (case, steps, scales)


def check_float16_skips_the_steps_that_one_process_skips():
    skips_the_same_steps("mixed_float16")


def check_float16_skips_the_steps_that_one_process_skips_where_gradients_are_accumulated():
    if is_keras_3 and not is_on_servers and not is_central:
        skips_the_same_steps("mixed_float16", 2)


def check_bfloat16_follows_one_process():
    follows_one_process("mixed_bfloat16")


def check_unchanged_code_has_its_loss_scaled():
    """`compile` makes the LossScaleOptimizer, and Keras's method is Keras's after."""
    if not is_keras_3:
        return
    with global_policy("mixed_float16"):
        with strategy.scope():
            model = make_model()
            model.compile("adam", "mse")
        model.fit(x, y, batch_size=16 * n, verbose=0)
    assert type(model.optimizer) is keras.optimizers.LossScaleOptimizer
    strategies.verify_equal(strategy, model.variables + model.optimizer.variables)
    assert (
        "_check_on_all_replicas"
        not in keras.optimizers.LossScaleOptimizer.check_finite.__code__.co_qualname
    )
    assert strategies.LossScaleOptimizer is keras.optimizers.LossScaleOptimizer


if __name__ == "__main__":
    run_checks(globals())
