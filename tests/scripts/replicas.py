"""Custom loops with several replicas a worker, in closed form: replica r of worker w has number
w * R + r, and n is how many there are.

replicas.py [replicas a worker]
"""

import sys

import numpy as np
import tensorflow as tf

import strategies

R = int(sys.argv[1]) if len(sys.argv) > 1 else 2
strategy = strategies.from_tf_config(num_replicas=R)
n = strategy.num_replicas_in_sync
workers = n // R
rank = strategy.extended._get_replica_id_in_sync_group(0) // R
SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN


def equal(found, expected):
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-6)


def mine(value):
    """This worker's values, one a replica."""
    return [np.asarray(one) for one in strategy.experimental_local_results(value)]


def number():
    return tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)


numbers = [float(rank * R + r) for r in range(R)]
each = strategy.experimental_distribute_values_from_function(
    lambda context: tf.constant(float(context.replica_id_in_sync_group))
)
equal(mine(each), numbers)
equal(mine(strategy.run(number)), numbers)

# Reduction and gathering, from outside and from inside a replica, in and out of functions.
total = n * (n - 1) / 2
for wrapped in (lambda fn: fn, tf.function):
    equal(strategy.reduce(SUM, wrapped(lambda: strategy.run(number))(), axis=None), total)
    equal(strategy.reduce("MEAN", wrapped(lambda: strategy.run(number))(), axis=None), total / n)
    rows = wrapped(lambda: strategy.run(lambda: tf.fill([2, 1], number())))()
    equal(strategy.gather(rows, axis=0)[:, 0], np.repeat(np.arange(n), 2))
    equal(strategy.gather(rows, axis=1)[0], np.arange(n))
    equal(strategy.reduce(SUM, rows, axis=0)[0], 2 * total)
    reduce = wrapped(
        lambda: strategy.run(
            lambda: tf.distribute.get_replica_context().all_reduce(SUM, [number(), number() * 2])
        )
    )
    for found, factor in zip(reduce(), (1, 2), strict=True):
        equal(mine(found), [total * factor] * R)
    gather = wrapped(
        lambda: strategy.run(
            lambda: tf.distribute.get_replica_context().all_gather(number()[tf.newaxis], axis=0)
        )
    )
    equal(mine(gather())[0], np.arange(n))

# Values of several shapes have no mean: each worker has its first. All find that out together,
# though only the last one has several.
sizes = strategy.experimental_distribute_values_from_function(
    lambda context: tf.ones([1 if context.replica_id_in_sync_group == n - 1 else 2])
)
equal(strategy.reduce("MEAN", sizes, axis=None), mine(sizes)[0])
equal(strategy.reduce("MEAN", rows, axis=None)[:, 0], [(n - 1) / 2] * 2)


# merge_call sees this worker's replicas.
def merged(strategy, value):
    return tf.add_n(strategy.experimental_local_results(value))


inside = strategy.run(lambda: tf.distribute.get_replica_context().merge_call(merged, (number(),)))
equal(mine(inside)[0], sum(numbers))

# A gradient, a rows' gradient, and variables of every kind.
with strategy.scope():
    weight = tf.Variable(2.0)
    table = tf.Variable(tf.ones([4, 1]))
    summed = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)
    averaged = tf.Variable(0.0, aggregation=tf.VariableAggregation.MEAN)
    local = tf.Variable(
        0.0,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
    )


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
equal(mine(dense), [total] * R)
counts = np.bincount(np.arange(n) % 4, minlength=4).astype(float)
counts[0] += n
equal(mine(sparse)[0][:, 0], counts)
equal(mine(summed), [total] * R)
equal(mine(averaged), [total / n] * R)
equal(mine(local), numbers)
equal(local.numpy(), total)

# Datasets: every row once, in parts that differ by one row at most; and each replica's own.
data = tf.data.Dataset.range(4 * n + 3).batch(2 * n)
seen, steps = [], 0
for batch in strategy.experimental_distribute_dataset(data):
    steps += 1
    seen += list(strategy.gather(batch, axis=0).numpy())
assert steps == 3
assert sorted(seen) == list(range(4 * n + 3))


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

strategies.verify_equal(strategy, [weight, table, summed, averaged])
if n > 1:
    try:
        weight.values[-1].assign(3.0)
        strategies.verify_equal(strategy, [weight])
    except RuntimeError:
        pass
    else:
        raise AssertionError("a replica of another value was not seen")
print("passed")
