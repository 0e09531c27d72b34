"""One worker has no memory for a copy of the variables, and alone waits until they are written."""

import sys

import keras
import numpy as np

import strategies
from strategies.callbacks import checkpoint_files

strategy = strategies.from_tf_config()
rank = strategies.worker_rank(strategy)
if rank == 1:
    checkpoint_files.available_memory = lambda: 0


class Unused(keras.Model):
    """Has an embedding that it does not call, before one that it calls."""

    def __init__(self):
        super().__init__()
        self.unused = strategies.DistributedEmbedding(4, name="unused")
        self.rows = strategies.DistributedEmbedding(4, name="rows")
        self.dense = keras.layers.Dense(1)

    def call(self, ids):
        return self.dense(self.rows(ids)[:, 0])


def train(epochs):
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = Unused()
        model.compile("adam", "mse")
    ids = np.arange(64).reshape([64, 1])
    checkpoint = strategies.callbacks.Checkpoint(sys.argv[1], every_steps=2)
    model.fit(ids, ids / 64.0, batch_size=16, epochs=epochs, verbose=0, callbacks=[checkpoint])
    return model


first = train(2)
again = train(2)  # nothing is left to train: this is what was saved
for one, other in zip(first.dense.get_weights(), again.dense.get_weights(), strict=True):
    np.testing.assert_array_equal(one, other)
for one, other in zip(first.rows.rows(), again.rows.rows(), strict=True):
    np.testing.assert_array_equal(one, other)
print("passed")
