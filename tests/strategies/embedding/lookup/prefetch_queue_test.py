"""Prefetched rows; on real servers in tests/distributed/servers_prefetch.py."""

import threading

import numpy as np
import pytest
import tensorflow as tf

import strategies
from strategies.embedding.lookup.prefetch_queue import PrefetchQueue
from tests.support.check_jobs import checks_of

slow = pytest.mark.slow


def keys(*ids):
    return np.array([[0, each, 1] for each in ids], np.int64)


def result(number):
    return lambda: [np.array([number])]


def test_a_result_is_for_the_same_keys_and_used_once():
    queue = PrefetchQueue(2)
    queue.submit(keys(1, 2), True, result(5))
    queue.submit(keys(3), True, result(6))
    assert queue.pop(keys(2, 1), True) is None
    assert queue.pop(keys(1, 2), False) is None
    assert queue.pop(keys(3), True) == [6]
    assert queue.pop(keys(1, 2), True) == [5]
    assert queue.pop(keys(1, 2), True) is None


def test_a_submitted_lookup_is_not_submitted_again():
    queue = PrefetchQueue(1)
    queue.submit(keys(1), True, result(5))
    queue.submit(keys(1), True, lambda: pytest.fail("submitted again"))
    assert queue.pop(keys(1), True) == [5]
    queue.submit(keys(1), True, result(6))
    assert queue.pop(keys(1), True) == [6]


def test_submit_does_not_wait_and_pop_does():
    queue, may_return = PrefetchQueue(1), threading.Event()

    def slowly():
        may_return.wait()
        return [np.array([7])]

    queue.submit(keys(1), True, slowly)
    threading.Timer(0.1, may_return.set).start()
    assert queue.pop(keys(1), True) == [7]


def test_a_cleared_queue_is_empty():
    queue = PrefetchQueue(1)
    queue.submit(keys(1), True, result(5))
    queue.clear()
    assert queue.pop(keys(1), True) is None


def test_pop_raises_the_error_of_the_lookup():
    queue = PrefetchQueue(1)

    def fails():
        raise RuntimeError("ps 0 is gone")

    queue.submit(keys(1), True, fails)
    with pytest.raises(RuntimeError, match="ps 0 is gone"):
        queue.pop(keys(1), True)


def test_other_ids_than_those_of_the_steps_are_refused():
    queue = PrefetchQueue(2)
    for number in range(3):
        queue.submit(keys(number), True, result(number))
        queue.check()
    for number in range(3, 9):
        queue.submit(keys(number), True, result(number))
    with pytest.raises(ValueError, match="the ids of 4 batches, and a step with other ids"):
        queue.check()
    # Not once a step had what it needs; what is too old is gone.
    assert queue.pop(keys(4), True) is None
    assert queue.pop(keys(5), True) == [5]
    queue.submit(keys(9), True, result(9))
    queue.check()


def test_without_servers_a_dataset_is_as_it_was():
    dataset = tf.data.Dataset.range(4).batch(2)
    layer = strategies.DistributedEmbedding(2)
    assert strategies.prefetch_rows(dataset, layer, lambda ids: ids) is dataset
    layer(next(iter(dataset)), training=True)
    assert layer.statistics()[layer.name]["prefetched"] == 0


@pytest.mark.parametrize(
    ("dataset", "layer", "steps", "error", "message"),
    [
        (np.zeros(3), "ours", 1, TypeError, "come from a tf.data.Dataset. Received: ndarray"),
        ("batches", tf.keras.layers.Embedding(2, 3), 1, TypeError, "Received: Embedding"),
        ("batches", "ours", 0, ValueError, "steps must be an integer >= 1. Received: 0"),
        ("batches", "ours", True, ValueError, "Received: True"),
    ],
)
def test_refusals(dataset, layer, steps, error, message):
    dataset = tf.data.Dataset.range(4).batch(2) if isinstance(dataset, str) else dataset
    layer = strategies.DistributedEmbedding(2) if layer == "ours" else layer
    with pytest.raises(error, match=message):
        strategies.prefetch_rows(dataset, layer, lambda ids: ids, steps=steps)


@slow
@pytest.mark.parametrize(
    ("mode", "workers", "ps", "options"),
    [
        ("async", 2, 2, "{}"),
        ("half_async", 1, 2, '{"num_replicas": 2}'),
        ("geo", 2, 1, '{"geo_steps": 3, "geo_rows": "servers"}'),
        ("sync", 2, 2, "{}"),
    ],
)
@pytest.mark.parametrize("check", checks_of("servers_prefetch.py"))
def test_nothing_is_lost_or_counted_twice(run_check, check, mode, workers, ps, options):
    run_check(check, mode, options, workers=workers, ps=ps)
