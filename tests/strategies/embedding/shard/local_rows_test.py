"""Rows that a worker trains itself: what it exchanges, and what it keeps."""

import numpy as np
import tensorflow as tf

from strategies.embedding.shard.local_rows import LocalRows, LocalRowVariable

WIDTH = 2


class Local:
    """Local rows of two tables, and the slot variables that were created on the servers."""

    def __init__(self):
        self.created = {}
        self.variable = LocalRowVariable(WIDTH, None, self.created.__setitem__)
        self.rows = LocalRows(2, self.variable)
        self.store = self.rows.store

    def fetch(self, pairs, value):
        """Begins a step that fetches rows; returns their numbers."""
        self.store.step.assign_add(1)
        keys = keys_of(pairs)
        numbers = self.rows.allocate(tf.constant(len(pairs), tf.int64))
        self.rows.insert(keys, numbers, tf.fill([len(pairs), WIDTH], value))
        return numbers

    def use(self, pairs):
        """Begins a step that uses rows which are here; returns their numbers."""
        self.store.step.assign_add(1)
        keys = keys_of(pairs)
        numbers = self.rows.find(keys)
        self.rows.count(keys, numbers)
        return numbers

    def change(self, numbers, delta):
        self.variable.table.add(numbers, tf.fill([len(numbers), WIDTH], delta))

    def pairs(self):
        return sorted(map(tuple, self.rows.all()[0][:, :2].tolist()))


def keys_of(pairs):
    """Returns keys of pairs of a table's number and an id, each of which occurs three times."""
    return tf.constant([[number, id_, 3] for number, id_ in pairs], tf.int64)


def test_what_is_exchanged_of_rows():
    local = Local()
    numbers = local.fetch([(1, 7), (0, 7), (0, 8)], 1.0)
    local.change(numbers[:2], 0.5)
    local.change(local.use([(0, 7)]), 0.25)
    assert local.rows.find(keys_of([(0, 8), (1, 8)])).numpy().tolist() == [int(numbers[2]), -1]
    exchanged = local.rows.to_exchange(0)
    found = zip(exchanged.keys.tolist(), exchanged.deltas[:, 0].numpy().tolist(), strict=True)
    # The server that a row was fetched from has counted those occurrences.
    assert sorted(found) == [([0, 7, 3], 0.75), ([0, 8, 0], 0.0), ([1, 7, 0], 0.5)]
    assert exchanged.used.all() and not exchanged.kept.any()
    assert local.rows.take_counts().tolist() == [[3, 1], [0, 0]]
    assert local.rows.take_counts().tolist() == [[0, 0], [0, 0]]
    local.rows.forget(exchanged.keys, exchanged.rows)
    assert local.pairs() == []
    assert sorted(local.fetch([(0, 1), (0, 2), (1, 3)], 0.0).numpy().tolist()) == [0, 1, 2]
    assert int(local.store.view.length.numpy()) == 3


def test_the_rows_used_most_are_kept_with_what_was_not_sent():
    local = Local()
    local.fetch([(0, id_) for id_ in range(5)], 1.0)
    local.change(local.use([(0, 3)]), 1.0)
    exchanged = local.rows.to_exchange(2)
    assert 3 in exchanged.keys[exchanged.kept, 1] and exchanged.kept.sum() == 2
    (position,) = np.flatnonzero(exchanged.keys[:, 1] == 3)
    # A quarter was sent, and others have made 10 of it meanwhile.
    row = exchanged.rows[[position]]
    values, slots = np.full([1, WIDTH], 10.0, np.float32), np.zeros([1, 0], np.float32)
    local.rows.renew(row, values, slots, np.full([1, WIDTH], 0.25, np.float32))
    assert local.rows.values(tf.constant(row)).numpy().tolist() == [[10.75, 10.75]]
    others = np.arange(5) != position
    local.rows.forget(exchanged.keys[others], exchanged.rows[others])
    assert local.pairs() == [(0, 3)] and not local.rows.to_exchange(0).used.any()
    # What was not used is not sent, and used rows rank before it.
    local.fetch([(1, 9)], 0.0)
    again = local.rows.to_exchange(1)
    assert again.keys[again.used].tolist() == again.keys[again.kept].tolist() == [[1, 9, 0]]
    assert again.deltas.numpy().tolist() == [[0.0, 0.0]]
    local.use([(0, 3)])
    again = local.rows.to_exchange(1)
    assert again.keys[again.kept].tolist() == [[0, 3, 3]]
    assert again.deltas.numpy()[again.keys[again.used, 1] == 3].tolist() == [[0.75, 0.75]]


def test_the_rows_that_were_used_are_kept_without_a_number():
    local = Local()
    local.fetch([(0, 1), (0, 2)], 1.0)
    exchanged = local.rows.to_exchange(None)
    assert exchanged.kept.all()
    slots, none = np.zeros([2, 0], np.float32), np.zeros([2, WIDTH], np.float32)
    local.rows.renew(exchanged.rows, none, slots, none)
    local.use([(0, 2)])
    exchanged = local.rows.to_exchange(None)
    assert exchanged.keys[:, 1].tolist() == [1, 2]
    assert exchanged.kept.tolist() == exchanged.used.tolist() == [False, True]


def test_a_row_whose_gradient_is_to_be_applied_waits_for_the_next_exchange():
    local = Local()
    numbers = local.fetch([(0, 1), (0, 2)], 1.0)
    local.store.view.show_gradient(numbers[:1])
    exchanged = local.rows.to_exchange(0)
    assert exchanged.keys[:, 1].tolist() == [2] and exchanged.others_are_used
    local.store.view.mark_applied()
    exchanged = local.rows.to_exchange(0)
    assert exchanged.keys[:, 1].tolist() == [1, 2] and not exchanged.others_are_used


def test_references_to_forgotten_rows_are_not_valid():
    local = Local()
    view = local.store.view
    references = view.references(local.fetch([(0, 1)], 1.0))
    local.rows.forget(*local.rows.all())
    local.fetch([(0, 2)], 1.0)
    assert view.drop_freed(references)[0].numpy().tolist() == []


def test_slot_variables_are_those_of_the_servers():
    local = Local()
    first = local.fetch([(0, 1)], 1.0)
    name = f"{local.variable.table_name}momentum"
    local.variable.make_slot(name, np.full([1, WIDTH], 0.5, np.float32))
    assert local.created["momentum"].tolist() == [0.5, 0.5]
    assert local.variable.live_slots() == ("momentum",)
    assert local.rows.to_exchange(0).slots.tolist() == [[0.5, 0.5]]
    second = local.fetch([(1, 1)], 1.0)
    local.rows.set_slots(second.numpy(), np.array([[3.0, 4.0]], np.float32))
    exchanged = local.rows.to_exchange(0)
    assert exchanged.slots[np.argsort(exchanged.rows)].tolist() == [[0.5, 0.5], [3.0, 4.0]]
    local.rows.forget(exchanged.keys, exchanged.rows)
    again = local.fetch([(0, 5)], 1.0)
    assert int(again[0]) in (int(first[0]), int(second[0]))
    assert local.rows.to_exchange(0).slots.tolist() == [[0.5, 0.5]]
