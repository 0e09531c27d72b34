"""Gradients that Keras adds up over steps, with several replicas a process: tf.cond on each.

accumulation.py [replicas a worker]
"""

import contextlib
import sys

import keras
import numpy as np
import tensorflow as tf

import strategies
from tests.support.assertions import assert_all_close, raises
from tests.support.checks import run_checks

replicas = int(sys.argv[1]) if len(sys.argv) > 1 else 2
strategy = strategies.from_tf_config(num_replicas=replicas)
n = strategy.num_replicas_in_sync
random = np.random.default_rng(0)
x = random.normal(size=[24 * n, 4]).astype("float32")
words = random.integers(0, 9, size=[24 * n, 3])
y = x.sum(axis=1, keepdims=True)
start = [random.normal(size=shape).astype("float32") for shape in [(9, 2), (6, 1), (1,)]]


def trained(make_optimizer, scope):
    with scope:
        model = keras.Sequential(
            [
                keras.layers.InputLayer([3], dtype="int64"),
                keras.layers.Embedding(9, 2),
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ]
        )
        model.compile(make_optimizer(), "mse")
    model.set_weights(start)
    model.fit(words, y, batch_size=2 * n, shuffle=False, verbose=0, epochs=2)
    return model


def follows_one_process(make_optimizer):
    one = trained(make_optimizer, contextlib.nullcontext())
    many = trained(make_optimizer, strategy.scope())
    assert_all_close(many.get_weights(), one.get_weights(), atol=1e-5, rtol=1e-5)
    strategies.verify_equal(strategy, many.variables)
    assert int(many.optimizer.iterations) == int(one.optimizer.iterations) > 0


def check_momentum_over_three_steps():
    options = {"momentum": 0.9, "gradient_accumulation_steps": 3}
    follows_one_process(lambda: keras.optimizers.SGD(0.1, **options))


def check_adam_over_two_steps():
    follows_one_process(lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2))


def check_replicas_reduce_inside_of_a_condition():
    """In closed form: replica r has r + 1."""

    def replica(limit):
        context = tf.distribute.get_replica_context()
        mine = tf.cast(context.replica_id_in_sync_group, tf.float32) + 1.0
        total = context.all_reduce("sum", tf.identity(mine))
        if total > limit:
            total += context.all_reduce("mean", tf.identity(mine))
            rows = tf.IndexedSlices(tf.fill([2, 3], mine), tf.constant([1, 4]), tf.constant([5, 3]))
            total += tf.reduce_sum(context.all_reduce("sum", rows).values)
        return total

    @tf.function
    def in_a_loop(times):
        total = tf.constant(0.0)
        for step in tf.range(times):
            each = strategy.run(replica, args=(tf.cast(step % 2, tf.float32) * 1e9,))
            total += strategy.reduce("SUM", each, axis=None)
        return total

    once = n * (n + 1) / 2
    found = float(in_a_loop(3))
    assert found == n * (3 * once + 2 * ((n + 1) / 2 + 6 * once)), found


def check_a_loop_of_each_replicas_own_is_refused():
    """As it is in stock TensorFlow."""
    if replicas == 1:
        return

    @tf.function
    def looping():
        def loop():
            total = tf.constant(0.0)
            for _ in tf.range(3):
                total += tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0))
            return total

        return strategy.run(loop)

    with raises(RuntimeError, "`merge_call` called while defining a new graph"):
        looping()


if __name__ == "__main__":
    run_checks(globals())
