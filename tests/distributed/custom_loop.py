"""The parts of tf.distribute's interface that custom loops use, in closed form.

custom_loop.py keras|tf_keras
"""

import importlib
import sys

import numpy as np
import tensorflow as tf

import strategies
from tests.support.assertions import assert_close, raises
from tests.support.checks import run_checks

keras = importlib.import_module(sys.argv[1])
strategy = strategies.from_tf_config()
n = strategy.num_replicas_in_sync
total = n * (n + 1) // 2  # the sum of rank + 1
ranks = strategy.experimental_distribute_values_from_function(
    lambda context: context.replica_id_in_sync_group
)
(rank,) = strategy.experimental_local_results(ranks)
context = tf.distribute.get_replica_context
one = tf.constant(rank + 1)
TYPES = "int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 bfloat16 float32 float64".split()


def check_reduction_and_gathering_of_every_type():
    for dtype in TYPES:
        value = tf.cast(one, dtype)
        summed = strategy.reduce("SUM", value, axis=None)
        assert summed.dtype == value.dtype
        assert_close(tf.cast(summed, tf.float64), total)
        gathered = strategy.gather(tf.fill([2, rank + 1], value), axis=1)
        assert gathered.dtype == value.dtype
        expected = [sum(([r + 1] * (r + 1) for r in range(n)), [])] * 2
        assert_close(tf.cast(gathered, tf.float64), expected)
    booleans = strategy.gather(tf.constant([rank % 2 == 0]), axis=0)
    assert_close(booleans, [r % 2 == 0 for r in range(n)])


def check_reduction_over_every_axis():
    assert_close(strategy.reduce("MEAN", tf.cast(one, tf.float32), axis=None), total / n)
    assert_close(strategy.reduce("MEAN", tf.constant([1.0, 3.0]), axis=0), 2.0)
    for scalar in (tf.cast(one, tf.float32), np.float32(rank + 1), float(rank + 1)):
        assert_close(strategy.reduce("SUM", scalar, axis=0), total)


def check_a_sum_of_booleans_is_refused():
    if n == 1:
        try:
            strategy.reduce("SUM", tf.constant(True), axis=None)
        except ValueError as error:
            assert "Received: bool" in str(error)
        return
    with raises(ValueError, "Received: bool"):
        strategy.reduce("SUM", tf.constant(True), axis=None)


def check_reduction_in_a_replica():
    """With gradients through it, in a condition and in a loop."""

    @tf.function
    def in_replica(value):
        def replica(value):
            with tf.GradientTape() as tape:
                tape.watch(value)
                loss = context().all_reduce("SUM", value * value)
            gradient = tape.gradient(loss, value)
            gathered = context().all_gather(tf.fill([rank + 1], value), axis=0)
            mean = context().all_reduce("MEAN", [value, {"a": value + 1}])
            if value > 0:
                conditional = context().all_reduce("SUM", value)
            else:
                conditional = context().all_reduce("SUM", -value)
            looped = tf.constant(0.0)
            for _ in tf.range(3):
                looped += context().all_reduce("SUM", value)
            merged = context().merge_call(
                lambda strategy, value: strategy.reduce("SUM", value, axis=None), args=(value,)
            )
            return loss, gradient, gathered, mean, conditional, looped, merged

        return strategy.run(replica, args=(value,))

    value = tf.cast(one, tf.float32)
    loss, gradient, gathered, mean, conditional, looped, merged = in_replica(value)
    assert_close(loss, sum(r * r for r in range(1, n + 1)))
    assert_close(gradient, n * 2 * (rank + 1))
    assert_close(gathered, sum(([r + 1] * (r + 1) for r in range(n)), []))
    assert_close(mean[0], total / n)
    assert_close(mean[1]["a"], total / n + 1)
    assert_close(conditional, total)
    assert_close(looped, 3 * total)
    assert_close(merged, total)


def check_variables_of_every_kind():
    synchronization, aggregation = tf.VariableSynchronization, tf.VariableAggregation
    with strategy.scope():
        first = tf.Variable(float(rank))
        state = tf.Variable(0.0, trainable=False)
        counts = [
            tf.Variable(0.0, trainable=False, synchronization=synchronized, aggregation=aggregated)
            for synchronized in (synchronization.ON_WRITE, synchronization.ON_READ)
            for aggregated in (aggregation.SUM, aggregation.MEAN)
        ]
        only_first = tf.Variable(0.0, trainable=False, aggregation=aggregation.ONLY_FIRST_REPLICA)
    assert_close(first, 0.0)

    @tf.function
    def write(value):
        def replica(value):
            for variable in [state, *counts, only_first]:
                variable.assign_add(value)

        strategy.run(replica, args=(value,))

    write(tf.cast(one, tf.float32))
    assert_close(state, total / n)
    assert_close([count.numpy() for count in counts], [total, total / n, total, total / n])
    assert_close(only_first, rank + 1)  # of this worker's replicas, as in stock tf.distribute
    strategies.verify_equal(strategy, [first, state])


def check_values_that_differ_are_named():
    with strategy.scope():
        first = tf.Variable(float(rank))
        mine = tf.Variable(float(rank))
    mine.values[0].assign(float(rank))
    if n == 1:
        strategies.verify_equal(strategy, [first, mine])
        return
    with raises(RuntimeError, "in 1 of 2 variables, the first of them at index 1"):
        strategies.verify_equal(strategy, [first, mine])


x = np.arange(20, dtype="float32").reshape(10, 2) / 10


def check_a_loop_of_the_users_own_and_the_same_in_a_graph():
    with strategy.scope():
        weight = tf.Variable([[1.0], [2.0]])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build([weight])
    dataset = tf.data.Dataset.from_tensor_slices(x).batch(4)
    distributed = strategy.experimental_distribute_dataset(dataset)

    @tf.function
    def step(batch):
        def replica(x):
            with tf.GradientTape() as tape:
                error = tf.square(tf.matmul(x, weight))[:, 0]
                loss = tf.nn.compute_average_loss(error, global_batch_size=4)
            optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
            return loss

        return strategy.reduce("SUM", strategy.run(replica, args=(batch,)), axis=None)

    @tf.function
    def epoch():
        losses = tf.constant(0.0)
        for batch in distributed:
            losses += step(batch)
        return losses

    @tf.function
    def epoch_of(dataset):
        losses = tf.constant(0.0)
        for batch in dataset:
            losses += step(batch)
        return losses

    losses, after = expected_losses(np.array([[1.0], [2.0]]))
    assert_close([step(batch) for batch in distributed], losses)
    for run in (epoch, lambda: epoch_of(distributed)):
        losses, after = expected_losses(after)
        np.testing.assert_allclose(run(), sum(losses), rtol=1e-4)
    np.testing.assert_allclose(weight, after, rtol=1e-4)
    strategies.verify_equal(strategy, [weight])


def expected_losses(weight):
    """Returns the losses and weight of plain gradient descent."""
    losses = []
    for batch in np.split(x, [4, 8]):
        products = batch @ weight
        losses.append((products**2).sum() / 4)
        weight = weight - 0.1 * 2 * batch.T @ products / 4
    return losses, weight


def check_with_its_own_data_each_worker_makes_as_many_steps_as_the_longest():
    def own(known):
        def function(context):
            rows = 3 + 2 * context.input_pipeline_id
            dataset = tf.data.Dataset.range(rows).batch(2)
            return dataset if known else dataset.filter(lambda _: True)

        return [len(batch) for batch in strategy.distribute_datasets_from_function(function)]

    for known in (True, False):
        batches = own(known)
        assert len(batches) == (3 + 2 * (n - 1) + 1) // 2, batches
        assert sum(batches) == 3 + 2 * rank, batches


def check_sharding_policies():
    for policy in ("OFF", "DATA"):
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = getattr(
            tf.data.experimental.AutoShardPolicy, policy
        )
        rows = tf.data.Dataset.range(10).batch(4).with_options(options)
        mine = np.concatenate([b.numpy() for b in strategy.experimental_distribute_dataset(rows)])
        everyone = strategy.gather(tf.constant(mine), axis=0).numpy()
        assert sorted(everyone) == sorted(list(range(10)) * (n if policy == "OFF" else 1))


def check_a_ragged_batch_of_examples_without_values_is_no_empty_batch():
    @tf.function
    def mean_of_ones(batch):
        return strategy.run(
            lambda batch: context().all_reduce("MEAN", tf.constant(1.0)), args=(batch,)
        )

    ragged = tf.RaggedTensor.from_row_lengths(tf.constant([], tf.int64), [0] * rank)
    assert_close(mean_of_ones(ragged), n > 1)


def check_a_second_strategy_in_the_same_process():
    assert strategies.from_tf_config().num_replicas_in_sync == n


if __name__ == "__main__":
    run_checks(globals())
