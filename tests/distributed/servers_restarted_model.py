"""Trains a model as users write it until it is told to stop, while a server is killed.

servers_restarted_model.py MODE DIRECTORY

It writes the files that servers_restarted.py describes.
"""

import os
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import strategies

ITEMS, USERS = 2000, 300
mode, directory = sys.argv[1], Path(sys.argv[2])
options = {"geo_steps": 3} if mode == "geo" else {}
strategy = strategies.from_tf_config(mode=mode, **options)
rank = strategies.worker_rank(strategy)
with open(directory / f"pids-{rank}", "a") as file:
    file.write(f"{os.getpid()}\n")


class Progress(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.losses = []

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(logs["loss"])
        with open(directory / f"steps-{rank}", "a") as file:
            file.write(f"{len(self.losses)}\n")
        if (directory / "stop").exists():
            self.model.stop_training = True


def batches(_):
    random = np.random.default_rng(rank)
    taste = np.random.default_rng(7).normal(size=[USERS + ITEMS])

    def generate():
        while True:
            users, items = random.integers(0, USERS, [32, 1]), random.integers(0, ITEMS, [32, 1])
            clicks = (taste[users] + taste[USERS + items] > 0).astype("float32")
            yield {"user": users, "item": items}, clicks

    ids = tf.TensorSpec([32, 1], tf.int64)
    return tf.data.Dataset.from_generator(
        generate,
        output_signature=({"user": ids, "item": ids}, tf.TensorSpec([32, 1], tf.float32)),
    )


with strategy.scope():
    user, item = (keras.Input([1], dtype="int64", name=name) for name in ("user", "item"))
    # Workers pull only the changed rows of the items, of which the server has a log.
    parts = [
        strategies.DistributedEmbedding(8, name="users")(user),
        keras.layers.Embedding(ITEMS, 8, name="items")(item),
    ]
    hidden = keras.layers.Flatten()(keras.layers.Concatenate()(parts))
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(16, "relu")(hidden))
    model = keras.Model({"user": user, "item": item}, keras.layers.Dense(1, "sigmoid")(hidden))
    optimizer = "adam" if mode == "geo" else keras.optimizers.Adagrad(0.1)
    model.compile(optimizer, "binary_crossentropy")
progress = Progress()
data = strategy.distribute_datasets_from_function(batches)
model.fit(data, epochs=1, steps_per_epoch=10**6, verbose=0, shuffle=False, callbacks=[progress])
strategy.extended.drain()
strategies.barrier(strategy)
assert np.mean(progress.losses[-20:]) < np.mean(progress.losses[:20]), progress.losses
assert all(np.isfinite(value).all() for value in model.get_weights())
if mode != "geo":
    # The rows that this worker did not pull since the restart are the server's all the same.
    if rank == 0:
        model.train_on_batch(*next(iter(data)))
        strategy.extended.drain()
        model.train_on_batch(*next(iter(data)))
        strategy.extended.drain()
        items = model.get_layer("items").embeddings.value
        copy = items.values[0].numpy()
        (value,) = strategy.extended.registry.read([items.remote])
        changed = np.flatnonzero((copy != value).any(axis=1))
        assert len(changed) <= (64 if mode == "async" else 0), changed
    strategies.barrier(strategy)
print("passed", flush=True)
