"""Rows that workers in step exchange a step ahead: results are the same, to the bit.

rows_ahead.py REPLICAS
"""

import sys

import keras
import numpy as np
import tensorflow as tf

import strategies
from tests.support.assertions import assert_all_equal, raises
from tests.support.checks import run_checks

replicas = int(sys.argv[1])
strategy = strategies.from_tf_config(num_replicas=replicas)
random = np.random.default_rng(0)
IDS = random.integers(0, 60, [200, 3])
Y = random.normal(size=[200, 1]).astype("float32")
EVICTING = {"eviction": strategies.Eviction(age=3, every=2)}


def dataset():
    # If a shuffle had an order for each epoch, `fit` would skip orders that the dataset of
    # prefetch_rows does not skip.
    return tf.data.Dataset.from_tensor_slices((IDS, Y)).shuffle(200, 3, False).batch(16)


def made(**options):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        layer = strategies.DistributedEmbedding(4, combiner="sum", name="rows", **options)
        model = keras.Sequential(
            [keras.Input([3], dtype="int64"), layer, keras.layers.Dense(1, name="dense")]
        )
        model.compile(keras.optimizers.Adam(0.05), "mse")
    return model, layer


def trained(is_ahead, **options):
    """Returns all values after some epochs, and how many rows were exchanged ahead."""
    model, layer = made(**options)
    data = dataset()
    if is_ahead:
        data = strategies.prefetch_rows(data, layer, lambda ids, y: ids)
        assert int(data.cardinality()) == 13
    losses = model.fit(data, epochs=2, verbose=0, validation_data=(IDS, Y)).history["loss"]
    # An iteration that does not end leaves rows behind that no step uses.
    losses += model.fit(data, steps_per_epoch=3, verbose=0).history["loss"]
    layer.set_rows(*layer.rows())
    losses += model.fit(data, epochs=1, verbose=0).history["loss"]
    (counts,) = layer.statistics().values()
    values = [*layer.rows(), *model.get_layer("dense").get_weights(), np.array(losses)]
    counted = {name: counts[name] for name in ("rows", "lookups", "unique", "new", "evicted")}
    return values, counted, counts["prefetched"]


def assert_same(**options):
    expected, counted, none = trained(False, **options)
    found, counted_ahead, prefetched = trained(True, **options)
    assert_all_equal(found, expected)
    assert counted_ahead == counted, (counted_ahead, counted)
    assert none == 0 and prefetched > 0, (none, prefetched)


def check_no_bit_differs():
    assert_same()


def check_rows_that_are_evicted_and_made_again():
    assert_same(**EVICTING)


def check_rows_in_16_bits():
    assert_same(row_dtype="bfloat16", exchange_dtype="bfloat16")


def check_ids_that_have_to_be_admitted():
    assert_same(admission=strategies.Admission(count=3))


def check_a_full_table():
    assert_same(input_dim=56, overflow="evict")


def check_a_layer_that_was_trained_is_refused():
    model, layer = made()
    model.fit(dataset(), verbose=0)
    with raises(ValueError, "must be called before the first training step"):
        strategies.prefetch_rows(dataset(), layer, lambda ids, y: ids)


def check_several_steps_are_refused():
    with raises(ValueError, "the rows of one batch ahead", "Received: steps=2"):
        strategies.prefetch_rows(dataset(), made()[1], lambda ids, y: ids, steps=2)


def check_a_penalty_is_refused():
    _, layer = made(l2=0.1)
    with raises(ValueError, "The rows of a table with an L2 penalty cannot be prefetched"):
        strategies.prefetch_rows(dataset(), layer, lambda ids, y: ids)


def check_other_ids_are_refused():
    model, layer = made()
    data = strategies.prefetch_rows(dataset(), layer, lambda ids, y: ids + 1)
    with raises(tf.errors.OpError, "with other ids than those of the next batches"):
        model.fit(data, verbose=0)


run_checks(globals())
