"""The log of removed ids: what its readers get, and how much it keeps."""

import numpy as np
import tensorflow as tf

from strategies.embedding.shard.id_map import IdMap
from strategies.embedding.shard.removal_log import RemovalLog


def int64(*values):
    return tf.constant(values, tf.int64)


def log_of(count):
    ids = IdMap()
    every = tf.range(count, dtype=tf.int64)
    ids.insert(every, every)
    return ids, RemovalLog(ids)


def remove(ids, log, *removed):
    ids.remove(int64(*removed))
    log.record(int64(*removed))


def read(log, count):
    removed, is_complete = log.since(count)
    return removed.numpy().tolist(), bool(is_complete)


def test_nothing_is_kept_before_a_reader_wants_it():
    ids, log = log_of(9)
    remove(ids, log, 0, 1)
    begun = log.begin()
    assert int(begun) == 2
    assert read(log, begun) == ([], True)
    assert read(log, 0) == ([], False), "the two were not kept"


def test_each_reader_gets_what_was_removed_since_it_read():
    ids, log = log_of(9)
    first = log.begin()
    remove(ids, log, 0, 1)
    second = log.begin()
    remove(ids, log, 2)
    assert read(log, first) == ([0, 1, 2], True)
    assert read(log, second) == ([2], True)
    assert read(log, log.begin()) == ([], True)


def test_an_id_that_has_a_row_again_is_not_removed():
    ids, log = log_of(9)
    begun = log.begin()
    remove(ids, log, 3, 4)
    ids.insert(int64(3), int64(0))
    assert read(log, begun) == ([4], True)
    remove(ids, log, 3)
    assert read(log, begun) == ([3, 4, 3], True)


def test_no_more_ids_are_kept_than_have_a_row():
    ids, log = log_of(9)
    begun = log.begin()
    remove(ids, log, 0, 1, 2, 3)
    assert read(log, begun) == ([0, 1, 2, 3], True)
    later = log.begin()
    remove(ids, log, 4)
    assert read(log, begun) == ([1, 2, 3, 4], False), "4 ids are left"
    assert read(log, later) == ([4], True)
    remove(ids, log, 5, 6, 7, 8)
    assert read(log, later) == ([], False)


def test_it_works_in_a_function_that_is_traced_once():
    ids, log = log_of(100)

    @tf.function
    def evict(removed):
        ids.remove(removed)
        log.record(removed)

    begun = log.begin()
    for start in range(0, 40, 10):
        evict(tf.range(start, start + 10, dtype=tf.int64))
    np.testing.assert_array_equal(log.since(begun)[0], np.arange(40))
