"""Rows on servers that are saved and evicted while other workers still train, in closed form.

embedding_racing.py MODE

Workers make different numbers of steps, and nothing waits for the slower ones but what is done to
all rows. Each step of a worker takes 1 from the rows of ids of its own, which are on all servers,
and 2 from one of all.
"""

import sys

import keras
import numpy as np
import tensorflow as tf

import strategies

mode = sys.argv[1]
# The closed form is that of servers which train the rows in every step.
options = {"geo_rows": "servers"} if mode == "geo" else {}
strategy = strategies.from_tf_config(mode=mode, **options)
rank, size = strategy.extended.workers.rank, strategy.extended.workers.size
COMMON = 2**63 - 1
OWN = -1 - np.arange(8 * size).reshape([size, 8])  # of each worker
IDS = np.array([COMMON, *OWN.ravel()])
STEPS = np.array([5 + 40 * worker for worker in range(size)])  # of each worker
with strategy.scope():
    # Of the row of all workers there are enough at once, of the others never.
    rule = strategies.Eviction(count=int(2 * STEPS.sum()))
    layer, again = (
        strategies.DistributedEmbedding(
            2, embeddings_initializer="zeros", eviction=rule, name="table"
        )
        for _ in range(2)
    )
    layer.build()
    again.build()
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build(layer.trainable_variables)
(variable,) = layer.trainable_variables


@tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
def step(ids):
    def replica(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(ids, training=True))
        optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])

    strategy.run(replica, args=(ids,))


def train():
    for _ in range(STEPS[rank]):
        step(tf.constant([COMMON, *OWN[rank], COMMON], tf.int64))


def rows(layer):
    """Returns the first number of each row."""
    return layer(IDS).numpy()[:, 0]


# An eviction sees all steps before it of all workers, and none of their gradients comes after it.
train()
assert layer.evict() == {"table": OWN.size}
train()
# So does what is saved, and how often a row was trained on belongs to its numbers.
layer.save_rows("rows")
train()
again.load_rows("rows")
strategies.barrier(strategy)
total, own = float(STEPS.sum()), np.repeat(STEPS, 8).astype(float)
np.testing.assert_array_equal(rows(layer), [-6 * total, *-2 * own])
np.testing.assert_array_equal(rows(again), [-4 * total, *-own])
assert again.evict() == {"table": OWN.size}
np.testing.assert_array_equal(rows(again), [-4 * total, *0 * own])
print("passed")
