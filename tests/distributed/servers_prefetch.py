"""Rows asked for beforehand, in closed form: nothing is lost or counted twice.

servers_prefetch.py MODE [other options of ParameterServerStrategy as JSON]
"""

import json
import sys

import keras
import numpy as np
import tensorflow as tf

import strategies
from tests.support.assertions import raises
from tests.support.checks import run_checks
from tests.support.workers import shared_directory

mode = sys.argv[1]
options = json.loads(sys.argv[2] if len(sys.argv) > 2 else "{}")
strategy = strategies.from_tf_config(mode=mode, **options)
rank, size = strategy.extended.workers.rank, strategy.extended.workers.size
replicas = len(strategy.extended.worker_devices)
is_prefetched = mode != "sync"
COMMON, MINE, BATCHES = -(2**63), 100 + rank, 15
STEPS = BATCHES * size


def own():
    """Batches of an id of all workers, one of this worker, and one that no other batch has."""
    off = tf.data.Options()
    off.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    count = STEPS * replicas
    rows = [[COMMON, MINE, 1000 * (rank + 1) + number] for number in range(count)]
    # As many go into a batch as it is cut into.
    rows = np.reshape(rows, [count // (size * replicas), -1]).astype(np.int64)
    return tf.data.Dataset.from_tensor_slices(rows).with_options(off)


class Loop:
    """A layer and a loop of one's own over it."""

    def __init__(self):
        with strategy.scope():
            self.layer = strategies.DistributedEmbedding(
                3, embeddings_initializer="zeros", eviction=strategies.Eviction(count=4)
            )
            self.layer.build()
            self.optimizer = keras.optimizers.SGD(1.0)
            self.optimizer.build(self.layer.trainable_variables)
        (self.variable,) = self.layer.trainable_variables
        self.dataset = self.prefetched(lambda ids: ids)

    def prefetched(self, ids_of):
        return strategies.prefetch_rows(own(), self.layer, ids_of)

    @tf.function
    def step(self, ids):
        """Takes 1 from the row of each id; returns what was there."""

        def replica(ids):
            with tf.GradientTape() as tape:
                rows = self.layer(ids, training=True)
                loss = tf.reduce_sum(rows)
            gradient = tape.gradient(loss, self.variable)
            self.optimizer.apply_gradients([(gradient, self.variable)])
            return rows[:, 0]

        return strategy.experimental_local_results(strategy.run(replica, args=(ids,)))

    def train(self, dataset, steps=None):
        seen = []
        for batch in strategy.experimental_distribute_dataset(dataset):
            seen.append([rows.numpy() for rows in self.step(batch)])
            if len(seen) == steps:
                break
        return np.array(seen)

    def counts(self):
        (counted,) = self.layer.statistics().values()
        return counted


def check_nothing_is_lost_or_counted_twice():
    loop = Loop()
    seen = loop.train(loop.dataset)
    strategies.barrier(strategy)
    ids = np.array([COMMON, *[100 + worker for worker in range(size)], 1003])
    expected = -np.array([STEPS * replicas * size, *[STEPS * replicas] * size, 1])
    np.testing.assert_array_equal(loop.layer(ids).numpy()[:, 0], expected)
    counted = loop.counts()
    assert counted["lookups"] == 3 * STEPS * replicas * size, counted
    assert counted["new"] == counted["rows"] == 1 + size + STEPS * replicas * size, counted
    # The ids of a replica differ; those of the replicas of a step, which `unique` counts, do not.
    assert counted["prefetched"] == (counted["lookups"] if is_prefetched else 0), counted
    # A step sees of its own worker's changes all but those of one step.
    if mode == "half_async":
        late = np.arange(STEPS) + seen[:, 0, 1] / replicas
        assert 0 <= late.min() <= late.max() <= 1, late


def check_what_was_asked_for_before_rows_went_is_not_used():
    """A row may be another id's by now."""
    if not is_prefetched:
        return
    loop = Loop()
    loop.train(loop.dataset)
    strategies.barrier(strategy)
    loop.train(loop.dataset, steps=3)
    assert loop.layer.evict() == {loop.layer.name: STEPS * replicas * size}
    seen = loop.train(loop.dataset)
    np.testing.assert_array_equal(seen[:, :, 2], 0)
    np.testing.assert_array_equal(loop.layer(np.array([1003])).numpy()[:, 0], -1)


def check_what_was_asked_for_before_a_save_is_in_the_next_delta():
    loop = Loop()
    loop.layer.set_rows(np.array([COMMON]), np.zeros([1, 3]))
    directory = str(shared_directory(strategy))
    batches = iter(strategy.experimental_distribute_dataset(loop.dataset))
    loop.step(next(batches))
    loop.layer.save_rows(directory)
    loop.step(next(batches))
    loop.layer.save_rows(directory, delta=True)
    before = loop.layer.snapshot_rows()
    loop.layer.load_rows(directory)
    after = loop.layer.snapshot_rows()
    for arrays in (before, after):
        order = np.argsort(arrays["0/ids"])
        arrays["0/rows"] = arrays["0/rows"][order]
    np.testing.assert_array_equal(before["0/rows"], after["0/rows"])


def check_other_ids_than_were_asked_for_are_refused():
    if not is_prefetched:
        return
    loop = Loop()
    loop.train(loop.dataset)
    before = loop.counts()["prefetched"]
    strategies.barrier(strategy)
    with raises(tf.errors.OpError, "must return the ids that the layer is called with"):
        loop.train(loop.prefetched(lambda ids: ids + 5))
    assert loop.counts()["prefetched"] == before


def check_fit_of_a_model_that_is_built_there():
    """With two tables, one of them looked up twice."""
    users = strategies.TableConfig("users", 4, embeddings_initializer="zeros")
    items = strategies.TableConfig("items", 2, embeddings_initializer="zeros")
    rows = 2 * 8 * size * replicas
    x = {
        "user": np.arange(rows)[:, np.newaxis] % 7,
        "item": np.arange(rows)[:, np.newaxis] % 5,
        "bought": np.arange(3 * rows).reshape([rows, 3]) % 4,
    }
    y = np.ones([rows, 1], np.float32)
    with strategy.scope():
        inputs = {
            "user": keras.Input([1], dtype="int64", name="user"),
            "item": keras.Input([1], dtype="int64", name="item"),
            "bought": keras.Input([3], dtype="int64", name="bought"),
        }
        layer = strategies.DistributedEmbedding(
            features={
                "user": strategies.FeatureConfig(users, "sum"),
                "item": strategies.FeatureConfig(items, "sum"),
                "bought": strategies.FeatureConfig(items, "mean"),
            }
        )
        joined = keras.layers.Concatenate()(list(layer(inputs).values()))
        model = keras.Model(inputs, keras.layers.Dense(1)(joined))
        model.compile(keras.optimizers.SGD(0.05), "mse")
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(8 * size * replicas)
    batches = strategies.prefetch_rows(dataset, layer, lambda x, y: x, steps=2)
    history = model.fit(batches, epochs=10, verbose=0, validation_data=dataset)
    strategies.barrier(strategy)
    assert history.history["loss"][-1] < 0.3 * history.history["loss"][0], history.history
    for name, counted in layer.statistics().items():
        # Keras makes the first batches before there are tables.
        assert counted["rows"] == {"users": 7, "items": 5}[name], counted
        assert counted["lookups"] == 10 * rows * {"users": 1, "items": 4}[name], counted
        least, most = (0.7, 1.0) if is_prefetched else (0.0, 0.0)
        part = counted["prefetched"] / (counted["unique"] * replicas)
        assert least <= part <= most, (name, counted)


if __name__ == "__main__":
    run_checks(globals())
