"""CentralStorageStrategy in one process: N replicas at B rows follow one at N * B rows.

central.py keras|tf_keras
"""

import importlib
import sys

import numpy as np
import tensorflow as tf

import strategies

REPLICAS, HOLDER = 3, "/job:localhost/replica:0/task:0/device:CPU:0"

keras = importlib.import_module(sys.argv[1])
layers = keras.layers
strategy = strategies.CentralStorageStrategy(num_replicas=REPLICAS)
assert strategy.num_replicas_in_sync == REPLICAS
assert strategy.extended.parameter_devices == (HOLDER,)
random = np.random.default_rng(0)
x = random.normal(size=[96, 6]).astype("float32")
words = random.integers(0, 20, size=[96, 6])
y = random.integers(0, 3, size=[96])


def compiled(model, optimizer=None):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer or keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return model


def dense():
    return compiled(
        keras.Sequential(
            [layers.InputLayer([6]), layers.Dense(8, "tanh"), layers.Dense(3, use_bias=False)]
        )
    )


def embedding():
    first = [layers.InputLayer([6], dtype="int64"), layers.Embedding(20, 4)]
    rest = [layers.GlobalAveragePooling1D(), layers.Dense(3)]
    return compiled(keras.Sequential(first + rest), keras.optimizers.SGD(0.1, momentum=0.9))


def regularized():
    """What the replicas differ in: statistics of their rows, and random numbers."""
    return compiled(
        keras.Sequential(
            [
                layers.InputLayer([6]),
                layers.Dense(8),
                layers.BatchNormalization(momentum=0.5),
                layers.Dropout(0.2),
                layers.Dense(3, dtype="float32"),
            ]
        )
    )


def is_central(variable):
    held = variable if hasattr(variable, "values") else variable.value
    return {one.device for one in held.values} == {HOLDER}


even = {"batch_size": 24, "epochs": 3, "shuffle": False, "verbose": 0}
for make_model, data in [(dense, x), (embedding, words)]:
    one = make_model()
    with strategy.scope():
        many = make_model()
    many.set_weights(one.get_weights())
    histories = [model.fit(data, y, **even).history for model in (one, many)]
    for name, values in histories[0].items():
        np.testing.assert_allclose(histories[1][name], values, rtol=1e-4, err_msg=name)
    for expected, found in zip(one.get_weights(), many.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)
    for mine in (many, one):
        mine.predictions = mine.predict(data, verbose=0)
        mine.evaluated = mine.evaluate(data, y, verbose=0)
    np.testing.assert_allclose(many.predictions, one.predictions, atol=1e-5)
    np.testing.assert_allclose(many.evaluated, one.evaluated, rtol=1e-4)
    variables = many.optimizer.variables
    state = variables() if callable(variables) else variables
    # tf_keras does not say that its count of steps is one for all replicas: each has its own.
    apart = [v.name for v in [*many.variables, *state] if not is_central(v)]
    assert apart in ([], ["iteration:0"]), apart

# 96 rows in batches of 25 leave 21 for the last, and 7 a replica; of one row two get none.
for policy in ("float32", "mixed_bfloat16", "mixed_float16"):
    keras.mixed_precision.set_global_policy(policy)
    with strategy.scope():
        model = regularized()
    before = model.get_weights()
    losses = model.fit(x, y, batch_size=25, epochs=4, verbose=0).history["loss"]
    assert np.isfinite(losses).all() and losses[-1] < losses[0], (policy, losses)
    after = model.get_weights()
    changed = [not np.array_equal(a, b) for a, b in zip(before, after, strict=True)]
    # Keras 3 counts the seeds of Dropout as weights too; the first bias has no part in the loss.
    assert sum(changed) >= 7, (policy, changed)
    assert all(np.isfinite(weight).all() for weight in after)
keras.mixed_precision.set_global_policy("float32")

# One moving mean for all: the mean of the replicas' own, which are of a third of the rows each.
with strategy.scope():
    normalize = layers.BatchNormalization(momentum=0.0)
    normalize.build([None, 6])
rows = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(x))
for batch in rows:
    tf.function(lambda part: strategy.run(normalize, args=(part,), kwargs={"training": True}))(
        batch
    )
np.testing.assert_allclose(np.asarray(normalize.moving_mean), x.mean(0), atol=1e-5)

try:
    strategies.CentralStorageStrategy(["CPU:0"], num_replicas=1)
except ValueError as error:
    assert "Received: both" in str(error)
else:
    raise AssertionError("two ways to name the devices")
print("passed")
