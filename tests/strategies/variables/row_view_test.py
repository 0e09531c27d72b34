"""References to rows, and which of them are still valid when a gradient is applied."""

import pytest
import tensorflow as tf

from strategies.variables.row_view import RowView

AGES = 2**20  # that a reference can tell apart


def view_of(rows):
    view = RowView(counts_frees=True)
    view.grow(tf.constant(rows, tf.int64))
    return view


def refer(view, *rows):
    return view.references(tf.constant(rows, tf.int64))


def free(view, *rows):
    view.mark_freed(tf.constant(rows, tf.int64))


def kept(view, references):
    """Returns the rows of the valid references, with the sums of 1, 10, 100, ... for each."""
    values = 10.0 ** tf.range(tf.size(references), dtype=tf.float32)
    compute = tf.function(lambda *given: view.drop_freed(*given))
    references, (sums,) = compute(references, values[:, tf.newaxis])
    rows = view.rows_of(references).numpy().tolist()
    return dict(zip(rows, sums[:, 0].numpy().tolist(), strict=True))


def test_without_frees_all_references_are_valid():
    view = view_of(3)
    assert kept(view, refer(view, 2, 0)) == {2: 1.0, 0: 10.0}
    assert kept(view, refer(view)) == {}


def test_a_freed_row_is_dropped_although_its_place_is_that_of_another_id():
    view = view_of(3)
    before = refer(view, 0, 1, 2)
    free(view, 1)
    assert kept(view, before) == {0: 1.0, 2: 100.0}
    assert kept(view, refer(view, 1)) == {1: 1.0}


def test_references_stay_valid_if_nothing_is_freed():
    view = view_of(2)
    before = refer(view, 0, 1)
    free(view)
    assert before.numpy().tolist() == refer(view, 0, 1).numpy().tolist()


def test_a_row_with_references_of_two_lookups_occurs_once():
    view = view_of(4)
    first = refer(view, 0, 1)
    free(view, 3)
    second = refer(view, 1, 2)
    assert kept(view, tf.concat([first, second], 0)) == {0: 1.0, 1: 110.0, 2: 1000.0}
    free(view, 0)
    assert kept(view, tf.concat([first, second], 0)) == {1: 110.0, 2: 1000.0}


@pytest.mark.parametrize("frees", [0, 1, AGES - 1, AGES, 2**40])
def test_the_count_may_have_any_value(frees):
    view = view_of(4)
    view._frees.assign(frees)
    before = refer(view, 0, -1, 2)
    assert kept(view, before) == {0: 1.0, 2: 100.0}
    free(view, 2)
    assert kept(view, before) == {0: 1.0}
    assert kept(view, refer(view, 2)) == {2: 1.0}


def test_references_beyond_the_maximum_age_are_dropped():
    view = view_of(2)
    before = refer(view, 0)
    view._frees.assign_add(2**17 - 1)
    assert kept(view, before) == {0: 1.0}
    view._frees.assign_add(1)
    assert kept(view, before) == {}


def test_references_from_before_seven_restarts_are_dropped():
    view = view_of(2)
    before = refer(view, 0)
    for _ in range(7):
        view._first_count.assign_add(400_557)
        assert kept(view, before) == {}
        assert kept(view, refer(view, 0)) == {0: 1.0}
        view._frees.assign_add(10_000)


def test_removed_rows_have_no_valid_references():
    view = view_of(3)
    before = refer(view, 0, 2)
    view.length.assign(2)
    free(view, 1)
    assert kept(view, before) == {0: 1.0}


def test_without_counts_a_reference_is_the_number_of_a_row():
    view = RowView()
    view.grow(tf.constant(2, tf.int64))
    assert refer(view, 1, 0).numpy().tolist() == [1, 0]
    assert kept(view, refer(view, 1, 0)) == {1: 1.0, 0: 10.0}
