"""An embedding's rows on the servers, in closed form: no change is lost, whoever waits for whom.

servers_embedding.py MODE STEPS [other options of ParameterServerStrategy as JSON]

Each step of a worker takes 1 from the row of an id of its own, and 2 from a row of all workers.
"""

import json
import os
import sys

import keras
import numpy as np
import tensorflow as tf

import strategies
from strategies.collectives.single_worker import single_worker_scope
from strategies.collectives.workers import collectives_of

mode, steps = sys.argv[1], int(sys.argv[2])
options = json.loads(sys.argv[3] if len(sys.argv) > 3 else "{}")
strategy = strategies.from_tf_config(mode=mode, **options)
rank, size = strategy.extended.workers.rank, strategy.extended.workers.size
COMMON = -(2**63)
MINE = [100 + worker for worker in range(size)]
with strategy.scope():
    layer = strategies.DistributedEmbedding(
        3, embeddings_initializer="zeros", eviction=strategies.Eviction(count=steps + 1)
    )
    layer.build()
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


for _ in range(steps):
    step(tf.constant([COMMON, MINE[rank], COMMON], tf.int64))
strategies.barrier(strategy)
ids = np.array([COMMON, *MINE, 5])
expected = np.array([-2 * steps * size, *[-steps] * size, 0])
np.testing.assert_array_equal(layer(ids).numpy(), np.tile(expected[:, np.newaxis], 3))
(counted,) = layer.statistics().values()
assert (counted["rows"], counted["new"]) == (size + 1, size + 1), counted
assert counted["lookups"] == 3 * steps * size, counted

# Each row is in one worker's part, and what is saved is of one moment.
everyone = collectives_of(strategy).all_gather(tf.constant(layer.rows()[0])).numpy()
assert sorted(everyone) == [COMMON, *MINE]
layer.save_rows("rows")
assert layer.evict() == {layer.name: size}
np.testing.assert_array_equal(layer(np.array(MINE)).numpy(), 0.0)
with strategy.scope():
    again = strategies.DistributedEmbedding(3, embeddings_initializer="zeros", name=layer.name)
    again.build()
again.load_rows("rows")
np.testing.assert_array_equal(again(ids).numpy(), np.tile(expected[:, np.newaxis], 3))
assert len(os.listdir("rows")) == 2

# One worker alone changes nothing that is of all of them.
if size > 1:
    with single_worker_scope():
        try:
            layer.statistics()
        except ValueError as error:
            assert "rows of parameter servers. Received: a callback" in str(error), error
        else:
            raise AssertionError("one worker alone")

# Steps of a program wait for each other: what a step sees are the steps before it.
if mode in ("sync", "half_async"):
    strategies.barrier(strategy)

    @tf.function
    def several(ids):
        seen = tf.zeros([0])
        for _ in range(4):
            seen = tf.concat([seen, layer(ids)[:, 0]], 0)
            step(ids)
        return seen

    seen = several(tf.constant([MINE[rank]], tf.int64)).numpy()
    np.testing.assert_array_equal(seen, [0, -1, -2, -3])
strategies.barrier(strategy)
# What servers do not have is refused when a layer is made.
for other in ({"optimizer": "sgd"}, {"input_dim": 5, "overflow": "share"}):
    try:
        with strategy.scope():
            strategies.DistributedEmbedding(3, **other)
    except ValueError as error:
        assert "Leave them out, or start the job without --ps" in str(error), error
    else:
        raise AssertionError(other)
print("passed")
