"""What a shard gives to a worker that trains rows itself, and takes from it."""

import keras
import numpy as np
import tensorflow as tf

from strategies import Admission, DistributedEmbedding, Eviction, FeatureConfig, TableConfig

WIDTH, WORKERS = 2, 4
NO_STEPS = tf.constant(0, tf.int64)


def shard_of_tables(**options):
    """Returns a layer of two tables, the lookup in its only shard, and its store."""
    tables = [TableConfig(name, WIDTH, embeddings_initializer="ones", **options) for name in "ab"]
    layer = DistributedEmbedding(features={each.name: FeatureConfig(each) for each in tables})
    layer.build()
    optimizer = keras.optimizers.SGD(1.0, momentum=0.5)
    optimizer.build(layer.trainable_variables)
    (lookup,) = layer.tables._shards[0].lookups.values()
    return layer, lookup, lookup._store


def keys_of(*triples):
    return tf.constant(triples, tf.int64)


def add(lookup, keys, deltas, slots, counts=((0, 0), (0, 0)), steps=0):
    count = keys.shape[0]
    lookup.add(
        keys, tf.constant(counts, tf.int64), tf.constant(steps, tf.int64),
        tf.fill([count, WIDTH], deltas), tf.fill([count, WIDTH], slots), ["momentum"], WORKERS,
    )  # fmt: skip


def test_changes_are_added_and_slot_variables_averaged():
    layer, lookup, store = shard_of_tables()
    keys = keys_of((1, 5, 2), (0, 5, 1), (1, 6, 1))
    has_row, values, slots = lookup.fetch(keys, tf.constant(3, tf.int64), ["momentum"])
    assert has_row.numpy().all() and int(store.step.numpy()) == 3
    np.testing.assert_array_equal(values, np.ones([3, WIDTH]))
    np.testing.assert_array_equal(slots, np.zeros([3, WIDTH]))
    add(lookup, keys_of((1, 5, 4), (0, 9, 1)), -0.25, -8.0, [[1, 1], [4, 2]], steps=2)
    has_row, values, slots = lookup.read(keys_of((1, 5, 0), (0, 9, 0), (0, 5, 0)), ["momentum"])
    assert has_row.numpy().tolist() == [True, False, True]
    np.testing.assert_array_equal(values, [[0.75, 0.75], [1.0, 1.0]])
    np.testing.assert_array_equal(slots, [[-2.0, -2.0], [0.0, 0.0]])
    counted = layer.statistics()
    assert [counted["b"][name] for name in ("lookups", "unique", "rows")] == [7, 4, 2]
    assert counted["a"]["lookups"] == 2
    metadata, rows = store.metadata, lookup._find(keys)
    assert metadata.last_step.gather(rows).numpy().tolist() == [5, 3, 3]
    assert metadata.frequency.gather(rows).numpy().tolist() == [6, 1, 1]


def test_ids_are_admitted_as_in_a_lookup():
    layer, lookup, _ = shard_of_tables(
        admission=Admission(count=3), eviction=Eviction(seconds=3600.0)
    )
    keys = keys_of((0, 1, 2), (1, 1, 3))
    has_row, values, slots = lookup.fetch(keys, NO_STEPS, ["momentum"])
    assert has_row.numpy().tolist() == [False, True]
    assert (values.shape, slots.shape) == ((2, WIDTH), (1, WIDTH))
    assert lookup.fetch(keys[:1], tf.constant(1, tf.int64), [])[0].numpy().tolist() == [True]
    assert layer.evict() == {"a": 0, "b": 0}
    assert [layer.rows(name)[0].tolist() for name in "ab"] == [[1], [1]]
