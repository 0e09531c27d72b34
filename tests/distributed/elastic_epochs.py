"""Counts how often each example is trained on, while workers come and go.

elastic_epochs.py MODE DIRECTORY EPOCHS [arrays | loop] [rows] [checkpoints] [slow]

Element i of a weight is how often example i was trained on; with rows, the weight is that of a
`DistributedEmbedding`. In "geo", a server adds a part of what a worker has trained, so there each
worker adds the examples of each step to DIRECTORY/examples-<rank>, and these are counted.

At the beginning of each step, each worker adds a line with the epoch, the number of the step and
the number of workers that divide the epoch to DIRECTORY/steps-<rank>; it then waits until there is
a file DIRECTORY/go-<epoch>-<step> if there is a file DIRECTORY/stop-<rank>-<epoch>-<step>. The
first worker writes the counts to DIRECTORY/counts.json when no other worker is left, and the
weight that the servers have to DIRECTORY/weight.json. With
checkpoints, workers meet at the ends of epochs to save; in a custom loop, they meet at a barrier
there. If slow, a step takes a while.
"""

import json
import os
import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import strategies
from strategies.ps.membership import PRESENT
from tests.support.elastic_training import BATCH, EXAMPLES

mode, directory, epochs, options = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
strategy = strategies.from_tf_config(mode=mode, **({"geo_steps": 1} if mode == "geo" else {}))
presence = strategy.extended.servers.presence
rank = strategies.worker_rank(strategy)
keras.utils.set_random_seed(1)


class Sum(keras.losses.Loss):
    """The gradient of each output is -1."""

    def call(self, y_true, y_pred):
        return -tf.reduce_sum(y_pred, -1)


class Examples(keras.layers.Layer):
    """Passes on its inputs; in "geo", writes down the examples that are trained on."""

    def call(self, x, training=False):
        if mode == "geo" and training:
            numbers = x[:, 0] if "rows" in options else tf.argmax(x, axis=1)
            tf.numpy_function(self._write, [tf.cast(numbers, tf.int64)], [], stateful=True)
        return x

    @staticmethod
    def _write(numbers):
        with open(directory / f"examples-{rank}", "a") as file:
            file.writelines(f"{number}\n" for number in numbers)


def begin_step(epoch, step):
    """Writes down a step, and waits if the test says so."""
    with open(directory / f"steps-{rank}", "a") as file:
        file.write(f"{epoch} {step} {strategy.present_workers()}\n")
    if (directory / f"stop-{rank}-{epoch}-{step}").exists():
        while not (directory / f"go-{epoch}-{step}").exists():
            time.sleep(0.02)
    if "slow" in options:
        time.sleep(0.05)


class Steps(keras.callbacks.Callback):
    """Reports the steps of `fit`."""

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        begin_step(self.epoch, batch)


@tf.function
def train(batch):
    """Makes a step of the custom loop."""

    def replica(x, _):
        with tf.GradientTape() as tape:
            loss = -tf.reduce_sum(model(x, training=True))
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        model.optimizer.apply_gradients(zip(gradients, variables, strict=True))

    strategy.run(replica, batch)


def loop():
    """Trains without `fit`."""
    batches = strategy.experimental_distribute_dataset(data["x"])
    for epoch in range(epochs):
        for step, batch in enumerate(batches):
            begin_step(epoch, step)
            train(batch)
        strategies.barrier(strategy)


def read_examples():
    """Returns how often each example was trained on, as the workers have written it down."""
    lines = [path.read_text().split() for path in directory.glob("examples-*")]
    return np.bincount(np.array(sum(lines, []), np.int64), minlength=EXAMPLES).tolist()


def read_weight():
    """Returns the elements of the weight, as the servers have them."""
    if "rows" not in options:
        kernel = model.trainable_variables[0].value
        (counts,) = strategy.extended.registry.read([kernel.remote])
        return counts[:, 0].tolist()
    # Not by `rows`, of which each worker has those of some servers, also of one that has left.
    return model.predict(x, batch_size=EXAMPLES, verbose=0)[:, 0].tolist()


with strategy.scope():
    if "rows" in options:
        layers = [
            keras.Input([1], dtype="int64"),
            Examples(),
            strategies.DistributedEmbedding(1, embeddings_initializer="zeros"),
            keras.layers.Flatten(),
        ]
    else:
        dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        layers = [keras.Input([EXAMPLES]), Examples(), dense]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(1.0), Sum(reduction="sum"))
x, y = np.eye(EXAMPLES, dtype=np.float32), np.zeros([EXAMPLES, 1], np.float32)
if "rows" in options:
    x = np.arange(EXAMPLES)[:, np.newaxis]
if "arrays" in options:
    data = {"x": x, "y": y, "batch_size": BATCH}  # which Keras shuffles
else:
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(EXAMPLES)
    data = {"x": dataset.batch(BATCH)}
callbacks = [Steps()]
if "checkpoints" in options:
    path = directory / "checkpoints"
    callbacks.append(strategies.callbacks.Checkpoint(path, every_steps=1))
(directory / f"pid-{rank}").write_text(f"{os.getpid()}")
if "loop" in options:
    loop()
else:
    model.fit(**data, epochs=epochs, callbacks=callbacks, verbose=0)
strategy.extended.drain()
if rank == 0:
    states = presence._memberships[0].states
    while PRESENT in states()[1:]:
        time.sleep(0.1)
    weight = read_weight()
    (directory / "weight.json").write_text(json.dumps(weight))
    counts = read_examples() if mode == "geo" else weight
    (directory / "counts.json").write_text(json.dumps(counts))
print("finished", flush=True)
