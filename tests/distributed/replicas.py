"""Custom loops with several replicas a worker, in closed form: replica r of worker w has number
w * R + r, and n is how many there are.

replicas.py [replicas a worker]
"""

import sys

import numpy as np
import tensorflow as tf

import strategies
from tests.support.assertions import assert_close, raises
from tests.support.checks import run_checks
from tests.support.workers import local_values

R = int(sys.argv[1]) if len(sys.argv) > 1 else 2
strategy = strategies.from_tf_config(num_replicas=R)
n = strategy.num_replicas_in_sync
workers = n // R
rank = strategy.extended._get_replica_id_in_sync_group(0) // R
SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN
numbers = [float(rank * R + r) for r in range(R)]
total = n * (n - 1) / 2


def mine(value):
    return local_values(strategy, value)


def number():
    return tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)


def check_each_replica_has_its_number():
    each = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(float(context.replica_id_in_sync_group))
    )
    assert_close(mine(each), numbers)
    assert_close(mine(strategy.run(number)), numbers)


def check_reduction_and_gathering_from_outside():
    for wrapped in (lambda fn: fn, tf.function):
        summed = strategy.reduce(SUM, wrapped(lambda: strategy.run(number))(), axis=None)
        assert_close(summed, total)
        mean = strategy.reduce("MEAN", wrapped(lambda: strategy.run(number))(), axis=None)
        assert_close(mean, total / n)
        rows = wrapped(lambda: strategy.run(lambda: tf.fill([2, 1], number())))()
        assert_close(strategy.gather(rows, axis=0)[:, 0], np.repeat(np.arange(n), 2))
        assert_close(strategy.gather(rows, axis=1)[0], np.arange(n))
        assert_close(strategy.reduce(SUM, rows, axis=0)[0], 2 * total)


def check_reduction_and_gathering_in_a_replica():
    def summed():
        return tf.distribute.get_replica_context().all_reduce(SUM, [number(), number() * 2])

    def joined():
        return tf.distribute.get_replica_context().all_gather(number()[tf.newaxis], axis=0)

    for wrapped in (lambda fn: fn, tf.function):
        reduce = wrapped(lambda: strategy.run(summed))
        for found, factor in zip(reduce(), (1, 2), strict=True):
            assert_close(mine(found), [total * factor] * R)
        gather = wrapped(lambda: strategy.run(joined))
        assert_close(mine(gather())[0], np.arange(n))


def check_of_values_of_several_shapes_each_worker_has_its_first():
    """They have no mean. All find that out together, though only the last one has several."""
    sizes = strategy.experimental_distribute_values_from_function(
        lambda context: tf.ones([1 if context.replica_id_in_sync_group == n - 1 else 2])
    )
    assert_close(strategy.reduce("MEAN", sizes, axis=None), mine(sizes)[0])
    rows = tf.function(lambda: strategy.run(lambda: tf.fill([2, 1], number())))()
    assert_close(strategy.reduce("MEAN", rows, axis=None)[:, 0], [(n - 1) / 2] * 2)


def check_merge_call_sees_this_workers_replicas():
    def merged(strategy, value):
        return tf.add_n(strategy.experimental_local_results(value))

    def replica():
        return tf.distribute.get_replica_context().merge_call(merged, (number(),))

    assert_close(mine(strategy.run(replica))[0], sum(numbers))


def check_gradients_and_variables_of_every_kind():
    aggregation = tf.VariableAggregation
    with strategy.scope():
        weight = tf.Variable(2.0)
        table = tf.Variable(tf.ones([4, 1]))
        summed = tf.Variable(0.0, aggregation=aggregation.SUM)
        averaged = tf.Variable(0.0, aggregation=aggregation.MEAN)
        on_read = tf.VariableSynchronization.ON_READ
        local = tf.Variable(0.0, synchronization=on_read, aggregation=aggregation.SUM)

    @tf.function
    def step():
        def replica():
            with tf.GradientTape() as tape:
                rows = tf.gather(table, [tf.cast(number(), tf.int32) % 4, 0])
                loss = weight * number() + tf.reduce_sum(rows)
            gradients = tape.gradient(loss, [weight, table])
            context = tf.distribute.get_replica_context()
            dense, sparse = context.all_reduce(SUM, gradients)
            summed.assign_add(number())
            averaged.assign_add(number())
            local.assign_add(number())
            return dense, tf.convert_to_tensor(sparse)

        return strategy.run(replica)

    dense, sparse = step()
    assert_close(mine(dense), [total] * R)
    counts = np.bincount(np.arange(n) % 4, minlength=4).astype(float)
    counts[0] += n
    assert_close(mine(sparse)[0][:, 0], counts)
    assert_close(mine(summed), [total] * R)
    assert_close(mine(averaged), [total / n] * R)
    assert_close(mine(local), numbers)
    assert_close(local.numpy(), total)
    strategies.verify_equal(strategy, [weight, table, summed, averaged])


def check_every_example_of_a_dataset_comes_once():
    """In parts that differ by one row at most."""
    data = tf.data.Dataset.range(4 * n + 3).batch(2 * n)
    seen, steps = [], 0
    for batch in strategy.experimental_distribute_dataset(data):
        steps += 1
        seen += list(strategy.gather(batch, axis=0).numpy())
    assert steps == 3
    assert sorted(seen) == list(range(4 * n + 3))


def check_each_workers_own_dataset():
    def own(context):
        assert context.num_input_pipelines == workers
        return tf.data.Dataset.range(2 * R + 1 + rank).map(lambda i: i + 100 * rank).batch(1)

    for unknown in (False, True):
        make = (lambda c: own(c).filter(lambda _: True)) if unknown else own
        seen = []
        for batch in strategy.distribute_datasets_from_function(make):
            seen += list(strategy.gather(batch, axis=0).numpy())
        expected = [i + 100 * w for w in range(workers) for i in range(2 * R + 1 + w)]
        assert sorted(seen) == expected, (seen, expected)


def check_a_replica_of_another_value_is_seen():
    if n == 1:
        return
    with strategy.scope():
        weight = tf.Variable(2.0)
    weight.values[-1].assign(3.0)
    with raises(RuntimeError):
        strategies.verify_equal(strategy, [weight])


if __name__ == "__main__":
    run_checks(globals())
