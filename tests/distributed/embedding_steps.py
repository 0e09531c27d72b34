"""A step is one of all replicas: what `age` of Eviction counts, on parameter servers as well.

embedding_steps.py MODE REPLICAS
"""

import sys

import keras
import numpy as np
import tensorflow as tf

import strategies
from strategies.collectives.workers import collectives_of
from tests.support.checks import run_checks
from tests.support.embeddings import all_rows

mode, replicas = sys.argv[1], int(sys.argv[2])
strategy = strategies.from_tf_config(mode=mode, num_replicas=replicas)
everyone = collectives_of(strategy)
rank, n = everyone.rank, everyone.size
# Where workers do not go in step, the steps of all of them are counted.
every = 1 if mode == "sync" else n


def layer_of(age):
    with strategy.scope():
        layer = strategies.DistributedEmbedding(
            1, eviction=strategies.Eviction(age=age), name="table"
        )
        layer.build()
    return layer


def ids_of(layer):
    return all_rows(strategy, layer)[0].tolist()


def step_of(layer):
    return int(layer.snapshot_rows()["0/step"])


def check_a_loop_of_ones_own_that_looks_up_twice():
    """Each replica has an id of its own in each step."""
    layer = layer_of(2 * every)
    with strategy.scope():
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build(layer.trainable_variables)

    def replica(ids):
        own = tf.distribute.get_replica_context().replica_id_in_sync_group
        ids = ids + 10 * (tf.cast(own, tf.int64) + replicas * rank * (every > 1))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(ids, training=True)) + tf.reduce_sum(
                layer(ids + 1000, training=True)
            )
        gradients = tape.gradient(loss, layer.trainable_variables)
        optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))

    @tf.function
    def run(ids):
        strategy.run(replica, args=(ids,))

    def ids_in(*steps):
        each = [step + 10 * number for step in steps for number in range(n * replicas)]
        return sorted(each + [one + 1000 for one in each])

    for step in (1, 2, 3):
        run(tf.constant([step], tf.int64))
        strategies.barrier(strategy)
        assert step_of(layer) == step * every, (step_of(layer), step, every)
        gone = layer.evict()["table"]
        # What came two steps ago goes, whichever replica it came to.
        assert gone == (2 * n * replicas if step == 3 else 0), (step, gone)
        assert ids_of(layer) == ids_in(*range(max(1, step - 1), step + 1)), (step, ids_of(layer))


def check_fit_of_batches_that_replicas_have_unlike_parts_of():
    layer = layer_of(1)
    with strategy.scope():
        inputs = keras.Input([1], dtype="int64")
        model = keras.Sequential([inputs, layer, keras.layers.Flatten(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    batch = replicas * n + 1
    rows = 4 * batch
    fit = {"batch_size": batch, "shuffle": False, "verbose": 0}
    model.fit(np.arange(rows)[:, np.newaxis], np.ones([rows, 1]), **fit)
    strategies.barrier(strategy)
    assert step_of(layer) == 4 * every, step_of(layer)
    if every == 1:
        # What came in the last step stays, whichever replica it came to.
        assert layer.evict() == {"table": rows - batch}
        assert ids_of(layer) == list(range(rows - batch, rows))


if __name__ == "__main__":
    run_checks(globals())
