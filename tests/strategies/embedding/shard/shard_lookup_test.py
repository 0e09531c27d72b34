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
        lookup.find(keys), keys[:, 2], tf.constant(counts, tf.int64), tf.constant(steps, tf.int64),
        tf.fill([count, WIDTH], deltas), tf.fill([count, WIDTH], slots), ["momentum"], WORKERS,
    )  # fmt: skip


def changes(lookup, keys, wanted, since):
    """Returns the positions that exist, those that are returned, their first numbers, and `now`."""
    found = lookup.changes(
        lookup.find(keys), tf.constant(wanted), tf.constant(since, tf.int64), ["momentum"]
    )
    exists, is_new, values, slots, now = (each.numpy() for each in found)
    existing = np.flatnonzero(exists)
    changed = existing[is_new]
    assert len(changed) == len(values) == len(slots)
    return existing.tolist(), changed.tolist(), values[:, 0].tolist(), now.tolist()


def test_changes_are_added_and_slot_variables_averaged():
    layer, lookup, store = shard_of_tables()
    keys = keys_of((1, 5, 2), (0, 5, 1), (1, 6, 1))
    has_row, values, slots = lookup.fetch(keys, tf.constant(3, tf.int64), ["momentum"])
    assert has_row.numpy().all() and int(store.step.numpy()) == 3
    np.testing.assert_array_equal(values, np.ones([3, WIDTH]))
    np.testing.assert_array_equal(slots, np.zeros([3, WIDTH]))
    add(lookup, keys_of((1, 5, 4), (0, 9, 1)), -0.25, -8.0, [[1, 1], [4, 2]], steps=2)
    rows = lookup.find(keys_of((1, 5, 0), (0, 9, 0), (0, 5, 0)))
    exists, is_new, values, slots, _ = lookup.changes(
        rows, tf.fill([3], True), tf.zeros([2], tf.int64), ["momentum"]
    )
    assert (exists.numpy().tolist(), is_new.numpy().tolist()) == ([True, False, True], [True, True])
    np.testing.assert_array_equal(values, [[0.75, 0.75], [1.0, 1.0]])
    np.testing.assert_array_equal(slots, [[-2.0, -2.0], [0.0, 0.0]])
    counted = layer.statistics()
    assert [counted["b"][name] for name in ("lookups", "unique", "rows")] == [7, 4, 2]
    assert counted["a"]["lookups"] == 2
    metadata, rows = store.metadata, lookup.find(keys)
    assert metadata.last_step.gather(rows).numpy().tolist() == [5, 3, 3]
    assert metadata.frequency.gather(rows).numpy().tolist() == [6, 1, 1]


def test_a_worker_gets_the_rows_that_it_wants_and_those_that_have_changed():
    _, lookup, _ = shard_of_tables()
    keys = keys_of((0, 5, 1), (1, 5, 1), (1, 6, 1))
    lookup.fetch(keys, tf.constant(1, tf.int64), ["momentum"])
    asked = tf.concat([keys, keys_of((0, 9, 1))], 0)
    *found, first = changes(lookup, asked, [False] * 4, [0, 0])
    assert found == [[0, 1, 2], [0, 1, 2], [1.0, 1.0, 1.0]]
    add(lookup, keys[2:], 0.5, 0.0, steps=1)
    *found, second = changes(lookup, asked, [True, False, False, True], [first[0] + 1, 0])
    assert found == [[0, 1, 2], [0, 2], [1.0, 1.5]]
    # A change in the same step, but after the rows were read, is not missed.
    add(lookup, keys[1:2], 0.25, 0.0)
    *found, third = changes(lookup, asked, [False] * 4, second)
    assert found == [[0, 1, 2], [1, 2], [1.25, 1.5]] and third == second
    # After a restart of the server, all of them may have changed.
    *found, _ = changes(lookup, asked, [False] * 4, [second[0] + 1, second[1] + 7])
    assert found == [[0, 1, 2], [0, 1, 2], [1.0, 1.25, 1.5]]


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
