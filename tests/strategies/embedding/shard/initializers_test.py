"""The first value of a row follows from the seed, the table and the id alone, to the bit."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from strategies.embedding.shard.initializers import initial_rows, quantile

INITIALIZERS = [
    keras.initializers.Zeros(),
    keras.initializers.Ones(),
    keras.initializers.Constant(0.3),
    keras.initializers.RandomUniform(-0.7, 0.3),
    keras.initializers.RandomNormal(0.1, 0.3),
    keras.initializers.TruncatedNormal(0.1, 0.3),
]
# Processors work on 4, 8 or 16 numbers at once, and on what is left at the end one by one.
SIZES = [1, 2, 3, 5, 8, 13, 16, 17, 31, 64, 100]


def rows_of(initializer, width, seed=0, table="t"):
    return initial_rows(type(initializer).__name__, initializer.get_config(), seed, table, width)


@pytest.mark.each_value
@pytest.mark.parametrize("initializer", INITIALIZERS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("width", [1, 3, 16])
def test_a_row_is_the_same_in_every_batch(initializer, width):
    rows = rows_of(initializer, width)
    compiled = tf.function(rows, input_signature=[tf.TensorSpec([None], tf.int64)])
    ids = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 1501, endpoint=True)
    expected = rows(tf.constant(ids)).numpy()
    assert expected.shape == (1501, width) and expected.dtype == np.float32
    random = np.random.default_rng(1)
    for size in SIZES:
        for _ in range(4):
            some = random.integers(0, len(ids), size)
            for function in (rows, compiled):
                found = function(tf.constant(ids[some])).numpy()
                np.testing.assert_array_equal(found.view(np.int32), expected[some].view(np.int32))
    alone = np.concatenate([compiled(tf.constant([each])).numpy() for each in ids[:300]])
    np.testing.assert_array_equal(alone.view(np.int32), expected[:300].view(np.int32))


@pytest.mark.parametrize("initializer", INITIALIZERS[3:], ids=lambda each: type(each).__name__)
def test_another_seed_or_table_has_other_rows(initializer):
    ids = tf.range(100, dtype=tf.int64)
    made = [rows_of(initializer, 4, *of)(ids).numpy() for of in ((0, "t"), (1, "t"), (0, "u"))]
    assert len(np.unique(np.concatenate(made))) > 1190


@pytest.mark.parametrize("kind", ["RandomUniform", "RandomNormal", "TruncatedNormal"])
def test_the_initializer_s_own_seed_takes_the_place_of_the_layer_s(kind):
    ids = tf.range(100, dtype=tf.int64)
    seeded = getattr(keras.initializers, kind)(seed=3)
    expected = rows_of(getattr(keras.initializers, kind)(), 4, seed=3)(ids).numpy()
    for seed in (0, 3):
        np.testing.assert_array_equal(rows_of(seeded, 4, seed)(ids).numpy(), expected)


def test_normal_numbers_follow_the_law():
    p = np.concatenate([np.arange(1, 2**16) / 2**16, 2.0 ** -np.arange(1, 25), [1 - 2.0**-24]])
    p = p[p < 1].astype(np.float32)
    expected = tf.math.ndtri(tf.constant(p, tf.float64)).numpy()
    np.testing.assert_allclose(quantile(tf.constant(p)), expected, rtol=1e-6, atol=1e-7)
    ids = tf.range(100_000, dtype=tf.int64)
    drawn = rows_of(keras.initializers.RandomNormal(1.0, 2.0), 2)(ids).numpy()
    assert drawn.mean() == pytest.approx(1.0, abs=5 * 2 / np.sqrt(drawn.size))
    assert drawn.std() == pytest.approx(2.0, rel=0.01)
    cut = rows_of(keras.initializers.TruncatedNormal(1.0, 2.0), 2)(ids).numpy()
    assert 1 - 4 <= cut.min() < -2.9 and 4.9 < cut.max() <= 1 + 4
