"""Rows asked for beforehand; on real servers in tests/distributed/servers_prefetch.py."""

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


def answer(number):
    return lambda: [np.array([number])]


def test_an_answer_is_for_the_same_keys_and_used_once():
    ahead = PrefetchQueue(2)
    ahead.ask(keys(1, 2), True, answer(5))
    ahead.ask(keys(3), True, answer(6))
    assert ahead.take(keys(2, 1), True) is None
    assert ahead.take(keys(1, 2), False) is None
    assert ahead.take(keys(3), True) == [6]
    assert ahead.take(keys(1, 2), True) == [5]
    assert ahead.take(keys(1, 2), True) is None


def test_what_is_asked_for_is_not_asked_for_again():
    ahead = PrefetchQueue(1)
    ahead.ask(keys(1), True, answer(5))
    ahead.ask(keys(1), True, lambda: pytest.fail("asked again"))
    assert ahead.take(keys(1), True) == [5]
    ahead.ask(keys(1), True, answer(6))
    assert ahead.take(keys(1), True) == [6]


def test_asking_does_not_wait_and_taking_does():
    ahead, may_answer = PrefetchQueue(1), threading.Event()

    def slowly():
        may_answer.wait()
        return [np.array([7])]

    ahead.ask(keys(1), True, slowly)
    threading.Timer(0.1, may_answer.set).start()
    assert ahead.take(keys(1), True) == [7]


def test_what_was_asked_for_is_forgotten():
    ahead = PrefetchQueue(1)
    ahead.ask(keys(1), True, answer(5))
    ahead.forget()
    assert ahead.take(keys(1), True) is None


def test_a_step_gets_the_error_of_who_asked():
    ahead = PrefetchQueue(1)

    def fails():
        raise RuntimeError("ps 0 is gone")

    ahead.ask(keys(1), True, fails)
    with pytest.raises(RuntimeError, match="ps 0 is gone"):
        ahead.take(keys(1), True)


def test_other_ids_than_those_of_the_steps_are_refused():
    ahead = PrefetchQueue(2)
    for number in range(3):
        ahead.ask(keys(number), True, answer(number))
        ahead.check()
    for number in range(3, 9):
        ahead.ask(keys(number), True, answer(number))
    with pytest.raises(ValueError, match="the ids of 4 batches, and a step with others"):
        ahead.check()
    # Not once a step had what it needs; what is too old is gone.
    assert ahead.take(keys(4), True) is None
    assert ahead.take(keys(5), True) == [5]
    ahead.ask(keys(9), True, answer(9))
    ahead.check()


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
        ("batches", "ours", 0, ValueError, "steps is a whole number from 1. Received: 0"),
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
        ("half_async", 2, 1, "{}"),
        ("half_async", 1, 2, '{"num_replicas": 2}'),
        ("geo", 2, 1, '{"geo_steps": 3}'),
        ("sync", 2, 2, "{}"),
    ],
)
@pytest.mark.parametrize("check", checks_of("servers_prefetch.py"))
def test_nothing_is_lost_or_counted_twice(run_check, check, mode, workers, ps, options):
    run_check(check, mode, options, workers=workers, ps=ps, timeout=300)
