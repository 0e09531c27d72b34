"""Which rows of a variable have changed: as updates tell it, and as a server's log knows it."""

import itertools
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from hypothesis import given, settings
from hypothesis import strategies as some

import strategies
from strategies.ps.row_log import NEVER, RowLog, trace_changed_rows
from strategies.ps.variables import PulledRows, SharedVariable, assign_copy

ROWS = 40
pytestmark = pytest.mark.training
_names = itertools.count()
CHANGES = some.lists(
    some.one_of(some.none(), some.lists(some.integers(0, ROWS - 1), max_size=12)), max_size=8
)


@settings(deadline=None, max_examples=40)
@given(before=CHANGES, after=CHANGES)
def test_a_copy_gets_the_rows_that_changed_since_or_all(before, after):
    log = RowLog(f"log{next(_names)}", ROWS)

    def change(changes):
        for rows in changes:
            if rows is None:
                log.add_all()
            else:
                log.add(tf.constant(rows, tf.int64))

    def since(position):
        rows, present = log.since(tf.constant(position, tf.int64))
        assert np.unique(rows).size == rows.shape[0]
        return set(rows.numpy().tolist()), int(present)

    change(before)
    everything, position = since(NEVER)
    assert everything == set(range(ROWS))
    assert since(position) == (set(), position)
    change(after)
    found, present = since(position)
    entries = [row for rows in after for row in rows or []]
    if None in after or len(entries) > ROWS // 4:
        assert found == set(range(ROWS))
    else:
        assert found == set(entries)
    assert present >= position + len(entries)


class Keras:
    """A variable of Keras 3 and its optimizer."""

    def __init__(self, optimizer):
        self.kept = keras.Variable(np.full([ROWS, 2], 2.0, np.float32))
        self.variable = self.kept.value
        self.optimizer = optimizer
        optimizer.build([self.kept])

    def change(self, gradient):
        self.optimizer.update_step(gradient, self.kept, tf.constant(0.1))


class TfKeras:
    """A variable of tf_keras and its optimizer."""

    def __init__(self, optimizer):
        self.variable = tf.Variable(tf.fill([ROWS, 2], 2.0))
        self.optimizer = optimizer
        optimizer.build([self.variable])

    def change(self, gradient):
        self.optimizer.update_step(gradient, self.variable)


class Plain:
    """A variable that a function of it and a gradient changes."""

    def __init__(self, function):
        self.variable = tf.Variable(tf.fill([ROWS, 2], 2.0))
        self.function = function

    def change(self, gradient):
        self.function(self.variable, gradient)


def if_it_holds(variable, gradient):
    tf.cond(
        tf.reduce_sum(gradient.values) > 0,
        lambda: [variable.scatter_add(gradient), tf.constant(True)][1],
        lambda: tf.constant(False),
    )


@pytest.mark.parametrize(
    ("make", "is_by_rows"),
    [
        (lambda: Keras(keras.optimizers.SGD()), True),
        # Its momentum of zero moves all rows by zero.
        (lambda: TfKeras(tf_keras.optimizers.SGD(jit_compile=False)), False),
        (lambda: Keras(keras.optimizers.SGD(momentum=0.9)), False),
        (lambda: Keras(keras.optimizers.Adam()), False),
        (lambda: Keras(keras.optimizers.Adagrad()), True),
        (lambda: TfKeras(tf_keras.optimizers.Adagrad(jit_compile=False)), True),
        (lambda: TfKeras(tf_keras.optimizers.Adam(jit_compile=False)), False),
        (
            lambda: Plain(lambda v, g: [v.scatter_sub(g), v.scatter_update(g), v.sparse_read([0])]),
            True,
        ),
        (lambda: Plain(lambda v, g: [v.scatter_sub(g), v.assign_sub(v * 0.1)]), False),
        (lambda: Plain(lambda v, g: v.read_value()), None),
        (lambda: Plain(if_it_holds), False),
    ],
)
def test_an_update_tells_which_rows_it_changes(make, is_by_rows):
    rows, made, found = [3, 5, 3], make(), {}
    before = made.variable.numpy().copy()

    @tf.function(autograph=False)
    def step():
        gradient = tf.IndexedSlices(tf.ones([3, 2]), tf.constant(rows), tf.constant([ROWS, 2]))
        found["rows"] = trace_changed_rows(lambda: made.change(gradient), made.variable)
        return tf.zeros([0], tf.int64) if found["rows"] is None else found["rows"]

    result = set(step().numpy())
    if is_by_rows is False:
        assert found["rows"] is None
        return
    assert result == (set(rows) if is_by_rows else set())
    changed = np.flatnonzero(np.any(made.variable.numpy() != before, axis=1))
    assert set(changed) == result


def test_rows_that_do_not_continue_where_the_copy_is_change_nothing():
    copy = tf.Variable(tf.zeros([4, 1]))
    positions = tf.Variable(tf.constant([NEVER, 5], tf.int64))
    variable = types.SimpleNamespace(values=[copy], row_positions=positions)

    @tf.function
    def assign(value, row, since, position):
        rows = tf.IndexedSlices(tf.fill([1, 1], value), [row])
        now = tf.constant([since, position], tf.int64)
        assign_copy(variable, PulledRows(1, rows, now[0], now[1]))

    pulls = [(1.0, 2, 4, 7), (2.0, 2, 5, 6), (3.0, 3, 8, 9), (4.0, 0, NEVER, 7)]
    for pull in pulls:
        assign(*pull)
    np.testing.assert_array_equal(copy[:, 0], [4, 0, 1, 0])
    assert positions.numpy().tolist() == [NEVER, 7]


def test_all_rows_are_pulled_where_a_whole_value_was_assigned():
    with strategies.MirroredStrategy(num_replicas=1).scope():
        made = tf.Variable(tf.zeros([4, 1]))
    variable = SharedVariable(made.distribute_strategy, made.values, made.aggregation)
    variable.remote = types.SimpleNamespace(slices=[None, None])
    variable.row_positions.assign([3, 5])
    rows = tf.IndexedSlices(tf.ones([1, 1]), [2])
    tf.function(assign_copy)(variable, tf.fill([4, 1], 8.0))
    assign_copy(variable, PulledRows(1, rows, tf.constant(5, tf.int64), tf.constant(6, tf.int64)))
    np.testing.assert_array_equal(variable.values[0].numpy()[:, 0], [8, 8, 8, 8])
    assert variable.row_positions.numpy().tolist() == [NEVER, NEVER]
