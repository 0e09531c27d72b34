"""Rows on servers that are saved and evicted while other workers still train, in closed form.

embedding_racing.py MODE

Workers make different numbers of steps, and nothing waits for the slower ones but what is done to
all rows. Each step of a worker takes 1 from the row of an id of its own, and 2 from one of all.
"""

import sys

import keras
import numpy as np
import tensorflow as tf

import strategies

strategy = strategies.from_tf_config(mode=sys.argv[1])
rank, size = strategy.extended.workers.rank, strategy.extended.workers.size
COMMON = 2**63 - 1
IDS = np.array([COMMON, *(-1 - worker for worker in range(size))])
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
        step(tf.constant([COMMON, -1 - rank, COMMON], tf.int64))


def rows(layer):
    """Returns the first number of each row."""
    return layer(IDS).numpy()[:, 0].tolist()


# An eviction sees all steps before it of all workers, and none of their gradients comes after it.
train()
assert layer.evict() == {"table": size}
train()
# So does what is saved, and how often a row was trained on belongs to its numbers.
layer.save_rows("rows")
train()
again.load_rows("rows")
strategies.barrier(strategy)
total = float(STEPS.sum())
assert rows(layer) == [-6 * total, *-2.0 * STEPS], rows(layer)
assert rows(again) == [-4 * total, *-1.0 * STEPS], rows(again)
assert again.evict() == {"table": size}
assert rows(again) == [-4 * total, *[0.0] * size], rows(again)
print("passed")
