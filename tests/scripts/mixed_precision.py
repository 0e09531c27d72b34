"""Half precision: loss scaling skips the steps that one process skips, on all workers alike.

mixed_precision.py keras|tf_keras [replicas a worker]
"""

import importlib
import sys

import numpy as np

import strategies

keras = importlib.import_module(sys.argv[1])
replicas = int(sys.argv[2]) if len(sys.argv) > 2 else 1
strategy = strategies.from_tf_config(num_replicas=replicas)
random = np.random.default_rng(0)
n = strategy.num_replicas_in_sync
is_keras_3 = keras.__name__ == "keras"


def make_model():
    return keras.Sequential(
        [
            keras.layers.InputLayer([8]),
            keras.layers.Dense(16, "relu"),
            keras.layers.Dense(1, dtype="float32"),
        ]
    )


def make_optimizer(policy, ours):
    inner = keras.optimizers.SGD(0.001)
    if policy != "mixed_float16":
        return inner
    if not is_keras_3:
        return keras.mixed_precision.LossScaleOptimizer(inner, initial_scale=2.0**18)
    kind = strategies.LossScaleOptimizer if ours else keras.optimizers.LossScaleOptimizer
    return kind(inner, initial_scale=2.0**18)


def scale_of(optimizer):
    scale = optimizer.dynamic_scale if is_keras_3 else optimizer.loss_scale
    return float(scale.numpy())


x = random.normal(size=[64 * n, 8]).astype("float32")
x[5] *= 30.0  # this row's gradients overflow in more steps than the others': on one replica
y = x.sum(axis=1, keepdims=True)
for policy in ("mixed_float16", "mixed_bfloat16"):
    keras.mixed_precision.set_global_policy(policy)
    one = make_model()
    one.compile(make_optimizer(policy, ours=False), "mse")
    with strategy.scope():
        many = make_model()
        many.compile(make_optimizer(policy, ours=True), "mse")
    first = one.get_weights() if n == 1 else [np.full_like(w, 0.05) for w in one.get_weights()]
    first[0] += np.linspace(-0.1, 0.1, first[0].size).reshape(first[0].shape).astype("float32")
    histories = []
    for model in (one, many):
        model.set_weights(first)
        fitted = model.fit(x, y, batch_size=16 * n, epochs=3, shuffle=False, verbose=0)
        histories.append(fitted.history["loss"])
    np.testing.assert_allclose(histories[1], histories[0], rtol=0.02)
    assert histories[1][-1] < histories[1][0]
    if policy == "mixed_float16":
        steps = [int(np.asarray(model.optimizer.iterations)) for model in (one, many)]
        scales = [scale_of(model.optimizer) for model in (one, many)]
        assert scales[0] < 2.0**18, "nothing overflowed"
        assert scales[1] == scales[0], scales
        assert steps[1] == steps[0], steps
    strategies.verify_equal(strategy, many.variables)

if is_keras_3 and strategy.extended._num_workers > 1:
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        with strategy.scope():
            model = make_model()
            model.compile("sgd", "mse")
        model.fit(x, y, batch_size=16 * n, verbose=0)
    except ValueError as error:
        assert "strategies.LossScaleOptimizer" in str(error)
    else:
        raise AssertionError("Keras's own loss scaling was let through")
print("passed")
