"""Rows that are stored as bfloat16: what is lost, and what is not."""

import numpy as np
import pytest
import tensorflow as tf

from strategies.variables.growable_array import GrowableArray
from strategies.variables.rounded_array import RoundedArray, make_array
from strategies.variables.row_view import RowView

ROWS = 3000
# Between two neighbours, a quarter of the way up.
LOWER, UPPER, QUARTER = 1.0, 1.0078125, 1.001953125


@pytest.fixture
def view():
    return RowView()


def array_of(view, width=5, rows=ROWS, value=LOWER):
    array = RoundedArray(width, view, fill=value)
    array.resize(tf.constant(rows, tf.int64))
    return array


def all_of(array, rows=ROWS):
    return array.gather(tf.range(rows, dtype=tf.int64)).numpy()


def train(array, values, rows=ROWS):
    array.train(tf.range(rows, dtype=tf.int64), tf.constant(values, tf.float32))


def noise(rows=ROWS, width=5):
    """Returns rows that differ, as all but new ones do."""
    return np.random.default_rng(0).normal(size=[rows, width]).astype("float32")


@pytest.mark.parametrize("width", [1, 4, 5, 8])
def test_a_number_becomes_one_of_its_neighbours_and_their_mean_is_the_number(view, width):
    for sign in (1, -1):
        array = array_of(view, width)
        array.update(tf.range(ROWS, dtype=tf.int64), tf.constant(noise(width=width)))
        train(array, np.full([ROWS, width], sign * QUARTER))
        found = sign * all_of(array)
        assert set(found.ravel().tolist()) == {LOWER, UPPER}
        share, deviation = (found == UPPER).mean(), np.sqrt(0.25 * 0.75 / found.size)
        assert abs(share - 0.25) < 5 * deviation
        # In each column alike.
        assert (abs((found == UPPER).mean(axis=0) - 0.25) < 0.05).all()


def test_what_bfloat16_holds_is_not_changed(view):
    array, values = array_of(view), noise()
    values = tf.cast(tf.cast(values, tf.bfloat16), tf.float32).numpy()
    values[0, :4] = 0.0, np.inf, -np.inf, 2.0**-130
    for _ in range(3):
        train(array, values)
        np.testing.assert_array_equal(all_of(array), values)
    train(array, np.full([ROWS, 5], np.nan))
    assert np.isnan(all_of(array)).all()


def test_small_updates_add_up(view):
    """Each is an eightieth of the distance of two numbers; rounded to the nearest, all are lost."""
    array, rows, steps = array_of(view, rows=500), tf.range(500, dtype=tf.int64), 400
    nearest = GrowableArray((5,), tf.bfloat16, fill=0.0)
    nearest.resize(tf.constant(500, tf.int64))
    start = 1 + np.random.default_rng(0).integers(0, 100, [500, 5]).astype("float32") / 128
    for each in (array, nearest):
        each.update(rows, tf.constant(start))
    for _ in range(steps):
        view.step.assign_add(1)
        array.add(rows, tf.fill([500, 5], 1e-4))
        nearest.add(rows, tf.fill([500, 5], 1e-4))
    added = all_of(array, 500) - start
    assert abs(added.mean() - steps * 1e-4) < 2e-3
    np.testing.assert_array_equal(tf.cast(nearest.gather(rows), tf.float32), start)


def test_two_writes_in_a_step_are_rounded_independently(view):
    """With the same random bits twice, those that stayed would stay again."""
    array, part = array_of(view, 4), 0.3
    array.update(tf.range(ROWS, dtype=tf.int64), tf.constant(noise(width=4)))
    start = all_of(array)
    gap = tf.cast(tf.math.nextafter(tf.abs(start), np.inf) - tf.abs(start), tf.float32).numpy()
    gap *= 2**16
    view.step.assign_add(1)
    for _ in range(2):
        array.add(tf.range(ROWS, dtype=tf.int64), tf.constant(part * gap))
    moved = (all_of(array) - start) / gap
    assert abs(moved.mean() - 2 * part) < 0.03


def test_the_same_step_rounds_alike_and_another_one_differently(view):
    def rounded(step):
        own = RowView()
        own.step.assign(step)
        array = array_of(own)
        array.update(tf.range(ROWS, dtype=tf.int64), tf.constant(noise()))
        train(array, np.full([ROWS, 5], QUARTER))
        return all_of(array)

    np.testing.assert_array_equal(rounded(3), rounded(3))
    assert (rounded(3) != rounded(4)).mean() > 0.3


def test_a_row_is_rounded_alike_wherever_it_is(view):
    forward, backward = array_of(view), array_of(RowView())
    values = noise()
    forward.update(tf.range(ROWS, dtype=tf.int64), tf.constant(values))
    backward.update(tf.range(ROWS, dtype=tf.int64), tf.constant(values[::-1]))
    for array in (forward, backward):
        train(array, np.full([ROWS, 5], QUARTER))
    np.testing.assert_array_equal(all_of(forward), all_of(backward)[::-1])


def test_new_and_reset_rows_have_the_initial_value(view):
    array = array_of(view, value=0.1)
    nearest = float(tf.cast(tf.cast(0.1, tf.bfloat16), tf.float32))
    assert (all_of(array) == np.float32(nearest)).all()
    train(array, noise())
    array.reset(tf.constant([7, 9], tf.int64))
    assert (all_of(array)[[7, 9]] == np.float32(nearest)).all()
    assert not (all_of(array)[8] == np.float32(nearest)).any()


def test_an_array_has_the_dtype_that_is_asked_for(view):
    for dtype, kind in (("float32", GrowableArray), ("bfloat16", RoundedArray)):
        array = make_array(4, dtype, view)
        assert type(array) is kind and array.dtype == tf.as_dtype(dtype)
