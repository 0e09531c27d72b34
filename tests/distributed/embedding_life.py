"""The life of rows on any number of workers: who gets one, who loses it, and what is counted.

embedding_life.py keras|tf_keras
"""

import importlib
import sys

import numpy as np
import tensorflow as tf

import strategies
from strategies.collectives.workers import collectives_of
from tests.support.assertions import raises
from tests.support.checks import run_checks
from tests.support.embeddings import all_rows, embedding_of
from tests.support.workers import shared_directory

keras = importlib.import_module(sys.argv[1])
DistributedEmbedding = embedding_of(sys.argv[1])
strategy = strategies.from_tf_config(mode="sync")
everyone = collectives_of(strategy)
rank, n = everyone.rank, everyone.size
ENDS = [-(2**63), -3, -2, -1, 0, 2**63 - 2, 2**63 - 1]


def layer_of(*arguments, **options):
    with strategy.scope():
        return DistributedEmbedding(*arguments, name="table", **options)


def optimizer_of(kind, *arguments, **options):
    with strategy.scope():
        return kind(*arguments, **options)


def sgd(**options):
    return optimizer_of(keras.optimizers.SGD, 1.0, **options)


def step(layer, ids, optimizer=None):
    """One step of a loop of one's own; returns the rows that this worker's ids had."""
    if (layer, optimizer) not in functions:
        functions[layer, optimizer] = function_of(layer, optimizer)
    return functions[layer, optimizer](tf.constant(ids, tf.int64)).numpy()


functions = {}


def function_of(layer, optimizer):
    with strategy.scope():
        if not layer.built:
            layer.build(None)
        if optimizer is not None:
            optimizer.build(layer.trainable_variables)

    def replica(ids):
        with tf.GradientTape() as tape:
            rows = layer(ids, training=True)
            loss = tf.reduce_sum(rows)
        if optimizer is not None:
            gradients = tape.gradient(loss, layer.trainable_variables)
            optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))
        return rows

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def run(ids):
        return strategy.run(replica, args=(ids,))

    return run


def ids_of(layer):
    return all_rows(strategy, layer)[0].tolist()


def check_every_int64_is_an_id_and_duplicates_of_all_workers_are_added_up():
    layer = layer_of(2, embeddings_initializer="zeros")
    step(layer, ENDS * 3, sgd())
    assert ids_of(layer) == ENDS
    np.testing.assert_array_equal(layer(np.array(ENDS)).numpy(), -3.0 * n)


def check_duplicates_are_added_up_before_their_gradient_is_squared():
    layer = layer_of(2, embeddings_initializer="zeros")
    options = {"initial_accumulator_value": 0.0, "epsilon": 0.0}
    step(layer, [7, 7], optimizer_of(keras.optimizers.Adagrad, 1.0, **options))
    np.testing.assert_allclose(layer(np.array([7])).numpy(), -1.0)  # g / sqrt(g * g)


def check_a_worker_without_ids_takes_part():
    layer = layer_of(2, embeddings_initializer="zeros")
    step(layer, ENDS, sgd())
    step(layer, [5] if rank == 0 else [], sgd())
    np.testing.assert_array_equal(layer(np.array([5])).numpy(), -1.0)
    step(layer, [], optimizer_of(keras.optimizers.Adam, 1.0))
    assert len(ids_of(layer)) == len(ENDS) + 1


def check_the_same_row_wherever_and_whenever_it_comes():
    first, second = (layer_of(3, embeddings_initializer="normal") for _ in range(2))
    step(first, ENDS)
    for one in reversed(ENDS):
        step(second, [one])
    np.testing.assert_array_equal(first(np.array(ENDS)), second(np.array(ENDS)))
    third = layer_of(3, embeddings_initializer="normal", unseen="zeros")
    np.testing.assert_array_equal(third(np.array(ENDS)).numpy(), 0.0)
    np.testing.assert_array_equal(step(third, ENDS), first(np.array(ENDS)))


def is_admitted_in_the_step_of_the_third(memory):
    """Of its comings on all workers together."""
    rule = strategies.Admission(3, memory=memory)
    layer = layer_of(2, embeddings_initializer="ones", unseen="zeros", admission=rule)
    got = step(layer, [1, 2] if rank == 0 else [2], sgd())
    assert ids_of(layer) == ([2] if n >= 3 else [])
    assert (got == (1 if n >= 3 else 0))[-1].all()
    step(layer, [1] if rank == 0 else [])
    step(layer, [1] if rank == 0 else [])
    assert 1 in ids_of(layer)
    counted = layer.statistics()["table"]
    assert counted["refused"] == (2 if n >= 3 else 3), counted
    assert counted["rows"] == len(ids_of(layer)) == counted["new"]


def check_an_id_is_admitted_in_the_step_of_its_third_time():
    is_admitted_in_the_step_of_the_third(None)


def check_an_id_is_admitted_in_the_step_of_its_third_time_where_a_sketch_counts():
    is_admitted_in_the_step_of_the_third(2**16)


def check_a_small_sketch_refuses_no_id_that_came_often_enough():
    layer = layer_of(2, admission=strategies.Admission(2, memory=1024))
    many = np.arange(2000)
    step(layer, many)
    if n == 1:
        step(layer, many)
    assert ids_of(layer) == many.tolist()


def check_eviction_by_age_and_by_count():
    """A row that comes again is new, and so are its slot variables."""
    rule = strategies.Eviction(age=2, count=2 * n)
    layer = layer_of(2, embeddings_initializer="zeros", eviction=rule)
    optimizer = sgd(momentum=0.5)
    step(layer, [1, 1, 2, 2, 3], optimizer)
    assert layer.evict() == {"table": 1}  # 3 came once
    assert ids_of(layer) == [1, 2]
    np.testing.assert_array_equal(layer(np.array([1, 3])).numpy()[:, 0], [-2.0 * n, 0.0])
    step(layer, [1, 1], optimizer)
    step(layer, [1, 1, 4, 4], optimizer)
    assert layer.evict() == {"table": 1}  # 2 came two steps ago
    assert ids_of(layer) == [1, 4]
    step(layer, [2, 2, 5, 5], optimizer)
    np.testing.assert_array_equal(layer(np.array([2, 5])).numpy(), -2.0 * n)
    assert layer.evict() == {"table": 0}
    counted = layer.statistics()["table"]
    assert (counted["rows"], counted["new"], counted["evicted"]) == (4, 6, 2), counted
    assert counted["lookups"] == 15 * n and counted["imbalance"] >= 1.0


def check_growth_keeps_what_was_there_and_what_travels_is_counted():
    layer = layer_of(4, embeddings_initializer="normal")
    optimizer = optimizer_of(keras.optimizers.Adam, 0.1)
    step(layer, np.arange(500), optimizer)
    before = layer(np.arange(500)).numpy()
    step(layer, np.arange(500, 10_000), optimizer)
    np.testing.assert_array_equal(layer(np.arange(500)).numpy(), before)
    assert len(ids_of(layer)) == 10_000
    counted = layer.statistics()["table"]
    assert counted["imbalance"] < 1.1
    # Each worker asked for all ids. An id is somebody else's for all workers but one; if it is on
    # a server, for all of them.
    others = n if isinstance(strategy, strategies.ParameterServerStrategy) else n - 1
    assert counted["bytes_ids"] == 24 * (10_000 + 2 * 500) * others, counted
    assert counted["bytes_rows"] == 16 * (10_000 + 2 * 500) * others, counted
    assert counted["bytes_gradients"] == 16 * 10_000 * others, counted
    text = layer.plan()
    assert "10,000 x 4" in text, text
    assert "104 (" in text, text  # 16 for itself and each slot variable, 56


def check_rows_of_ones_own():
    layer = layer_of(2, embeddings_initializer="zeros")
    layer.build(None)
    layer.set_rows(np.array([4, -4]), np.array([[1.0, 2.0], [3.0, 4.0]]))
    np.testing.assert_array_equal(layer(np.array([-4, 4, 5])).numpy(), [[3, 4], [1, 2], [0, 0]])


def check_a_delta_of_nothing_is_refused():
    layer = layer_of(2, embeddings_initializer="zeros")
    layer.build(None)
    directory = str(shared_directory(strategy))
    with raises(ValueError, "Save all rows there first"):
        layer.save_rows(directory, delta=True)
    layer.save_rows(directory)
    layer.save_rows(directory, delta=True)


def check_rows_are_loaded_from_files_of_which_the_last_one_is_whole():
    layer = layer_of(2, embeddings_initializer="zeros")
    layer.build(None)
    layer.set_rows(np.array([4, -4]), np.array([[1.0, 2.0], [3.0, 4.0]]))
    directory = str(shared_directory(strategy))
    optimizer = sgd(momentum=0.5)
    layer.save_rows(directory)
    step(layer, [4, 9], optimizer)
    layer.save_rows(directory, delta=True)
    after = layer(np.array([-4, 4, 9])).numpy()
    step(layer, [-4, 4, 10], optimizer)
    again = layer_of(2, embeddings_initializer="zeros")
    again.build()
    again.load_rows(directory)
    np.testing.assert_array_equal(again(np.array([-4, 4, 9])).numpy(), after)
    assert ids_of(again) == [-4, 4, 9]
    # The slot variable that was saved goes on: m = 0.5 * -n - n.
    step(again, [4], sgd(momentum=0.5))
    np.testing.assert_array_equal(again(np.array([4])).numpy(), after[1:2] - 1.5 * n)


def check_the_number_of_ids_of_all_workers_together_is_bounded():
    """The last of the checks: a step that fails may leave the workers in different operations."""
    layer = layer_of(2, 10)
    step(layer, np.arange(10))
    with raises(tf.errors.InvalidArgumentError, "more than input_dim ids. Received:"):
        step(layer, [3, 11])


if __name__ == "__main__":
    run_checks(globals())
