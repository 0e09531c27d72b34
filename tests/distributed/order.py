"""All workers exchange in the same order, whatever the graph does; in closed form.

order.py keras|tf_keras [replicas a worker]
"""

import importlib
import os
import sys
import time

import numpy as np
import tensorflow as tf

import strategies
from tests.support.assertions import assert_all_close, assert_all_equal, assert_close
from tests.support.checks import run_checks
from tests.support.workers import local_values

keras = importlib.import_module(sys.argv[1])
R = int(sys.argv[2]) if len(sys.argv) > 2 else 1
strategy, other = (strategies.from_tf_config(num_replicas=R) for _ in range(2))
n = strategy.num_replicas_in_sync
first = strategy.extended._get_replica_id_in_sync_group(0)
rank, workers = first // R, n // R
total = n * (n + 1) / 2  # the sum of the replicas' numbers, from 1
rows = 2 * workers * (workers + 1) / 2  # the sum of what `gathered` returns of 1
SUM = tf.distribute.ReduceOp.SUM


def context():
    return tf.distribute.get_replica_context()


def number():
    return tf.cast(context().replica_id_in_sync_group, tf.float32) + 1.0


def late(value):
    """Returns a value, on the last worker and others some time after the first one has it."""
    moment = 0.02 * rank

    def wait(value):
        time.sleep(moment)
        return value

    return tf.ensure_shape(tf.numpy_function(wait, [value], value.dtype), value.shape)


def gathered(strategy, value):
    return strategy.gather(tf.fill([rank + 1, 2], value), axis=0)


def check_conditions_and_loops_around_the_replicas():
    """Every branch exchanges other things."""

    @tf.function
    def around(steps, flag):
        found = tf.constant(0.0)
        for step in tf.range(steps):
            if (step % 2 == 0) == flag:
                each = strategy.run(lambda: late(number()))
                found += strategy.reduce(SUM, each, axis=None)
            else:
                found += tf.reduce_sum(gathered(strategy, tf.constant(1.0)))
                each = strategy.run(lambda: [number() * 2, number()])
                found += tf.add_n(strategy.reduce(SUM, each, axis=None))
            inner = tf.constant(0)
            while inner < step:
                each = strategy.run(lambda: context().all_reduce(SUM, number()))
                found += strategy.reduce("MEAN", each, axis=None)
                inner += 1
        return found

    for steps in (3, 4):
        for flag in (True, False):
            even, odd = (steps + 1) // 2, steps // 2
            singles, pairs = (even, odd) if flag else (odd, even)
            loops = steps * (steps - 1) / 2
            expected = singles * total + pairs * (rows + 3 * total) + loops * total
            assert_close(around(tf.constant(steps), tf.constant(flag)), expected)


def check_conditions_and_loops_inside_of_a_replica():
    """Where one process has one of them."""
    if R > 1:
        return

    @tf.function
    def inside(steps, value):
        def replica():
            own = number()
            found = tf.cond(
                value > 0,
                lambda: context().all_reduce(SUM, late(own)),
                lambda: tf.reduce_sum(context().all_reduce(SUM, tf.fill([3], own))),
            )
            for step in tf.range(steps):
                # The rounds' operations have one name, and nothing of one round needs another.
                found += context().all_reduce(SUM, own * tf.cast(step, tf.float32))
                if step == 1:
                    found += context().all_reduce(SUM, [late(own), own])[1]
            return found + context().all_reduce(SUM, own)

        return strategy.run(replica)

    for value in (1.0, -1.0, 1.0):
        expected = ((1 if value > 0 else 3) + (0 + 1 + 2 + 3) + 1 + 1) * total
        found = inside(tf.constant(4), tf.constant(value))
        assert_close(local_values(strategy, found), [expected])


def model_of(units, strategy, rate):
    with strategy.scope():
        layers = keras.layers
        model = keras.Sequential([layers.InputLayer([3]), layers.Dense(units), layers.Dense(1)])
        model.compile(keras.optimizers.Adam(rate), "mse")
    random = np.random.default_rng(units)
    model.set_weights([random.normal(size=w.shape) * 0.3 for w in model.weights])
    return model


def check_each_of_two_models_is_what_it_is_alone():
    """Of the same strategy, and of another one."""
    x = np.random.default_rng(0).normal(size=[8 * n, 3]).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    options = {"batch_size": 2 * n, "shuffle": False, "verbose": 0}

    def trained(model, epochs):
        for _ in range(epochs):
            model.fit(x, y, **options)
        return model.get_weights()

    alone = [trained(model_of(units, strategy, 0.01), 3) for units in (4, 5)]
    for second in (strategy, other):
        models = [model_of(4, strategy, 0.01), model_of(5, second, 0.01)]
        for _ in range(3):
            for model in models:
                time.sleep(0.02 * rank)
                model.fit(x, y, **options)
        for model, expected in zip(models, alone, strict=True):
            if os.environ.get("KERAS_STRATEGIES_COMMUNICATION") == "horovod" and workers > 2:
                # It adds in an order that depends on which tensors it happens to send together.
                assert_all_close(model.get_weights(), expected, rtol=1e-4)
            else:
                assert_all_equal(model.get_weights(), expected)
            strategies.verify_equal(strategy, model.variables)


def check_two_strategies_take_turns_in_one_function():
    @tf.function
    def in_turn():
        found = []
        for round in range(4):
            for factor, each in ((1.0, strategy), (10.0, other)):
                scaled = each.run(lambda factor=factor: late(number()) * factor)
                found.append(each.reduce(SUM, scaled, axis=None))
                if round % 2:
                    found.append(tf.reduce_sum(gathered(each, tf.constant(factor))))
        return tf.stack(found)

    pair = [total, 10 * total]
    more = [total, rows, 10 * total, 10 * rows]
    for _ in range(2):
        assert_close(in_turn(), [*pair, *more, *pair, *more])


def own_rows(context):
    """Asks the others whether they have more, while the step before still reduces."""
    length = 5 + 3 * context.input_pipeline_id
    dataset = tf.data.Dataset.range(length).map(lambda row: tf.cast(row, tf.float32))
    return dataset.filter(lambda _: True).batch(1).prefetch(4)


sums = sum((5 + 3 * worker) * (4 + 3 * worker) / 2 for worker in range(workers))


def check_a_pipeline_asks_for_more_while_the_step_before_reduces():
    dataset = strategy.distribute_datasets_from_function(own_rows)

    @tf.function
    def epoch(dataset):
        found = tf.constant(0.0)
        for batch in dataset:
            each = strategy.run(lambda rows: late(tf.reduce_sum(rows)) + 0.0, args=(batch,))
            for _ in tf.range(3):
                found += strategy.reduce(SUM, each, axis=None)
        return found

    for _ in range(2):
        assert_close(epoch(dataset), 3 * sums)


def check_two_pipelines_at_once():
    datasets = [each.distribute_datasets_from_function(own_rows) for each in (strategy, other)]
    found, steps = 0.0, 0
    for left, right in zip(*datasets, strict=True):
        for each, batch in ((strategy, left), (other, right)):
            found += float(each.reduce(SUM, each.run(tf.reduce_sum, args=(batch,)), axis=None))
        steps += 1
    assert_close(found, 2 * sums)
    assert steps == -(-(5 + 3 * (workers - 1)) // R), steps


if __name__ == "__main__":
    run_checks(globals())
