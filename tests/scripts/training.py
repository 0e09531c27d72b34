"""What users do with a model: fit with validation data, evaluate, predict, uneven data.

training.py keras|tf_keras [replicas a worker]
"""

import importlib
import json
import sys
import tempfile

import numpy as np
import tensorflow as tf

import strategies

keras = importlib.import_module(sys.argv[1])
replicas = int(sys.argv[2]) if len(sys.argv) > 2 else 1
strategy = strategies.from_tf_config(num_replicas=replicas)
workers = strategy.num_replicas_in_sync // replicas
rank = strategy.extended._get_replica_id_in_sync_group(0)
random = np.random.default_rng(0)


def same_everywhere(value):
    """Whether a value that JSON can hold is the same on all workers."""
    text = json.dumps(value, sort_keys=True, default=float).encode()
    mine = np.zeros([1, 4096], np.uint8)
    mine[0, : len(text)] = np.frombuffer(text, np.uint8)
    gathered = strategy.gather(tf.constant(mine), axis=0).numpy()
    return (gathered == gathered[:1]).all()


def plain_model():
    return keras.Sequential(
        [
            keras.layers.InputLayer([5]),
            keras.layers.Dense(8, "relu"),
            keras.layers.Dense(1, "sigmoid"),
        ]
    )


# 97 rows in batches of 16: with 3 workers the parts are uneven, and of the last batch's only
# row two workers get none.
x = random.normal(size=[97, 5]).astype("float32")
y = (x.sum(axis=1, keepdims=True) > 0).astype("float32")

# Evaluation and prediction give the numbers of one process.
one = plain_model()
with strategy.scope():
    many = plain_model()
many.set_weights(one.get_weights())
metrics = lambda: ["accuracy", keras.metrics.AUC()]  # noqa: E731
one.compile("sgd", "binary_crossentropy", metrics=metrics())
with strategy.scope():
    many.compile("sgd", "binary_crossentropy", metrics=metrics())
shared = [
    np.asarray(strategy.gather(tf.constant(w)[tf.newaxis], axis=0)[0]) for w in one.get_weights()
]
one.set_weights(shared)
many.set_weights(shared)
expected = one.evaluate(x, y, batch_size=16, verbose=0)
found = many.evaluate(x, y, batch_size=16, verbose=0)
np.testing.assert_allclose(found, expected, rtol=1e-5)
predicted = many.predict(x, batch_size=16, verbose=0)
np.testing.assert_allclose(predicted, one.predict(x, batch_size=16, verbose=0), rtol=1e-5)
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
np.testing.assert_allclose(many.evaluate(dataset, verbose=0), expected, rtol=1e-5)

# Training on them ends, with the same logs on all workers and no NaN: not even where batch
# normalization takes the mean of no rows.
keras.utils.set_random_seed(rank)
with strategy.scope():
    model = keras.Sequential(
        [
            keras.layers.InputLayer([5]),
            keras.layers.Dense(8),
            keras.layers.BatchNormalization(momentum=0.5),
            keras.layers.Activation("relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(1, "sigmoid"),
        ]
    )
    model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy", metrics=["accuracy"])
# The first worker's initial values, whatever the seeds.
strategies.verify_equal(strategy, model.variables)
initial = model.get_weights()[0]
if workers > 1 and rank > 0:
    keras.utils.set_random_seed(rank)
    assert not np.array_equal(initial, keras.layers.Dense(8).kernel_initializer([5, 8]))

history = model.fit(
    x, y, batch_size=16, epochs=5, shuffle=False, validation_data=(x, y), verbose=0
).history
assert all(np.isfinite(values).all() for values in history.values()), history
assert history["val_accuracy"][-1] > 0.7, history
assert same_everywhere(history)
strategies.verify_equal(strategy, model.variables)
assert all(np.isfinite(weight).all() for weight in model.get_weights())
evaluated = model.evaluate(x, y, batch_size=16, verbose=0)
assert same_everywhere(evaluated)
assert model.predict(x, batch_size=16, verbose=0).shape == (97, 1)

# Arrays are shuffled anew in each epoch, the same way on all workers: each row comes once.
# (One worker has Keras's own datasets, which repeat their order where a seed is set.)
numbers = np.arange(40, dtype="float32").reshape(40, 1)
seen: list = []


class Recorder(keras.Model):
    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(1)

    def call(self, inputs):
        tf.numpy_function(lambda rows: seen.append(rows[:, 0].tolist()), [inputs], [])
        return self.layer(inputs)


keras.utils.set_random_seed(7)
with strategy.scope():
    recorder = Recorder()
    recorder.build([None, 1])
    recorder.compile("sgd", "mse", jit_compile=False)
epochs = []
for _ in range(2):
    seen.clear()
    recorder.fit(numbers, numbers, batch_size=8, epochs=3, shuffle=True, verbose=0)
    rows = [row for batch in seen for row in batch]
    everyone = strategy.gather(tf.constant([len(rows)]), axis=0).numpy()
    assert everyone.sum() == 3 * 40, everyone
    gathered = strategy.gather(tf.constant(rows), axis=0).numpy().tolist()
    assert sorted(gathered) == sorted(numbers[:, 0].tolist() * 3)
    each = len(rows) // 3
    epochs += [tuple(rows[start : start + each]) for start in range(0, 3 * each, each)]
    assert workers == 1 or len(set(epochs[-3:])) == 3, "an epoch is in the order of another"

# Several steps an execution: a loop in the graph.
with strategy.scope():
    model.compile("sgd", "binary_crossentropy", metrics=["accuracy"], steps_per_execution=3)
assert same_everywhere(model.fit(x, y, batch_size=16, verbose=0, shuffle=False).history)
assert len(model.predict(x, batch_size=16, verbose=0)) == 97
strategies.verify_equal(strategy, model.variables)

# Eagerly.
with strategy.scope():
    model.compile("sgd", "binary_crossentropy", run_eagerly=True)
model.fit(x[:40], y[:40], batch_size=16, verbose=0, shuffle=False)
strategies.verify_equal(strategy, model.variables)

# A dataset that was distributed before.
with strategy.scope():
    model.compile("sgd", "binary_crossentropy", metrics=["accuracy"])
distributed = strategy.experimental_distribute_dataset(dataset)
steps = 7 if keras.__name__ == "tf_keras" else None
assert same_everywhere(model.fit(distributed, steps_per_epoch=steps, verbose=0).history)


# A generator: nobody knows how long it is.
def batches():
    for start in range(0, 97, 16):
        yield x[start : start + 16], y[start : start + 16]


model.fit(batches(), verbose=0)
strategies.verify_equal(strategy, model.variables)

# What is saved is what any other process loads.
with tempfile.TemporaryDirectory() as directory:
    # tf_keras cannot load its own HDF5 files into metrics under stock tf.distribute either.
    path = f"{directory}/{rank}" + (".weights.h5" if keras.__name__ == "keras" else "")
    model.save_weights(path)
    model.load_weights(path)
strategies.verify_equal(strategy, model.variables)
# XLA cannot compile what reduces over workers: that is said, and nothing hangs.
if workers > 1:
    with strategy.scope():
        model = plain_model()
        model.compile("sgd", "binary_crossentropy", jit_compile=True)
    try:
        model.fit(x, y, batch_size=16, verbose=0)
    except ValueError as error:
        assert "is not compiled by XLA. Received: jit_compile=True" in str(error)
    else:
        raise AssertionError("compiled by XLA")

print("passed")
