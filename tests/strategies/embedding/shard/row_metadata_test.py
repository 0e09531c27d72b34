"""Metadata of rows, and the capacity of arrays."""

import mmap
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies
from strategies.embedding.config import MAX_FREQUENCY
from strategies.embedding.shard.row_metadata import RowMetadata
from strategies.variables.growable_array import GrowableArray

pytestmark = pytest.mark.training


def resident():
    """Returns the bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def capacity_of(rows):
    return int(tf.raw_ops.VariableShape(input=rows._array.handle)[0])


def test_when_and_how_often_are_one_number_and_do_not_disturb_each_other():
    metadata = RowMetadata()
    rows = tf.constant([0, 1, 2], tf.int64)
    metadata.array.resize(tf.constant(3, tf.int64))
    metadata.touch(rows, tf.constant(7, tf.int64), tf.constant([1, 2, MAX_FREQUENCY + 5], tf.int64))
    metadata.touch(rows[:2], tf.constant(2**40, tf.int64), tf.constant([5, 6], tf.int64))
    assert metadata.last_step.gather(rows).numpy().tolist() == [2**40, 2**40, 7]
    # A row that comes in each example never counts as one that came seldom.
    assert metadata.frequency.gather(rows).numpy().tolist() == [6, 8, MAX_FREQUENCY]
    metadata.last_step.update(rows[1:], tf.constant([3, 4], tf.int64))
    metadata.frequency.update(rows[:2], tf.constant([9, -1], tf.int32))
    assert metadata.last_step.gather(rows).numpy().tolist() == [2**40, 3, 4]
    assert metadata.frequency.gather(rows).numpy().tolist() == [9, 0, MAX_FREQUENCY]


def test_an_eviction_names_no_count_beyond_that():
    assert strategies.Eviction(count=MAX_FREQUENCY).count == MAX_FREQUENCY
    with pytest.raises(ValueError, match=f"cannot exceed {MAX_FREQUENCY}. Received: count=1048576"):
        strategies.Eviction(count=MAX_FREQUENCY + 1)


@pytest.mark.parametrize("expected", [100, 300_000, 3_000_000])
def test_an_array_has_the_capacity_that_is_expected_of_it_and_grows_beyond(expected):
    rows = GrowableArray((4,), tf.float32, fill=1.0, expected=expected)
    rows.resize(tf.constant(expected * 3 // 4, tf.int64))
    assert capacity_of(rows) <= max(expected, (1 << 24) // 16)
    rows.resize(tf.constant(expected, tf.int64))
    assert capacity_of(rows) == expected
    if expected == 100:
        rows.resize(tf.constant(101, tf.int64))
        assert capacity_of(rows) == 200
        assert rows.gather(tf.constant([0, 100], tf.int64)).numpy().tolist() == [[1.0] * 4] * 2


@pytest.mark.parametrize("in_function", [False, True])
def test_growing_after_an_update_writes_to_no_row_that_is_only_reserved(in_function):
    megabytes = 400
    rows = GrowableArray((16,), tf.float32, fill=1.0, expected=megabytes << 14)

    def grow(length):
        rows.resize(tf.constant(length, tf.int64))
        last = tf.constant([length - 1], tf.int64)
        rows.update(last, rows.gather(last) + 1.0)

    before = resident()
    for length in (1000, 300_000):  # the first 64 KB, and as many as are expected
        (tf.function(grow) if in_function else grow)(length)
    assert capacity_of(rows) == megabytes << 14
    assert resident() - before < megabytes << 19
    ends = tf.constant([0, 998, 999, 299_998, 299_999])
    assert rows.gather(ends).numpy()[:, 0].tolist() == [1, 1, 2, 1, 2]


def test_tables_that_say_input_dim_and_their_slot_variables_reserve_no_more():
    layer = strategies.DistributedEmbedding(4, input_dim=200_000)
    ids = keras.Input([], dtype="int64")
    model = keras.Model(ids, keras.layers.Dense(1)(layer(ids)))
    model.compile("adagrad", "mse")
    model.train_on_batch(np.arange(150_000), np.zeros([150_000, 1], np.float32))
    (table,) = layer._require_tables()._shards[0].tables.values()
    slots = table.store.slots()
    assert list(slots) == ["accumulator"]
    for array in (table.store.variable.table, table.store.metadata.array, *slots.values()):
        assert capacity_of(array) <= 200_001  # and not 2**18


def test_a_row_that_ids_share_counts_for_all_of_them():
    layer = strategies.DistributedEmbedding(2, input_dim=1, overflow="share")
    layer(tf.constant([1, 1], tf.int64), training=True)
    layer(tf.constant([1, 2, 3, 3], tf.int64), training=True)
    (table,) = layer._require_tables()._shards[0].tables.values()
    rows = tf.concat([table.map.find(tf.constant([1], tf.int64)), table.overflow.row()], 0)
    assert table.store.metadata.frequency.gather(rows).numpy().tolist() == [3, 3]
    assert table.store.metadata.last_step.gather(rows).numpy().tolist() == [2, 2]
