"""What changes a variable on the servers, and what does not.

servers_changes.py keras|tf_keras MODE [other options of ParameterServerStrategy as JSON]
"""

import contextlib
import importlib
import json
import sys
import threading

import numpy as np
import tensorflow as tf

import strategies
from tests.support.assertions import raises
from tests.support.checks import run_checks

keras, mode = importlib.import_module(sys.argv[1]), sys.argv[2]
options = json.loads(sys.argv[3] if len(sys.argv) > 3 else "{}")
if mode == "geo":
    options["geo_steps"] = 2
strategy = strategies.from_tf_config(mode=mode, **options)
extended = strategy.extended
rank, size = extended.workers.rank, extended.workers.size
layers, optimizers = keras.layers, keras.optimizers


def on_servers(variable):
    """Returns a variable's value when the steps of all workers are there."""
    strategies.barrier(strategy)
    value = extended.registry.read([shared(variable).remote])[0]
    strategies.barrier(strategy)
    return value


def shared(variable):
    """Returns the variable inside of Keras 3's."""
    return variable.value if hasattr(variable, "path") else variable


def made(all_layers, optimizer):
    """Returns a model of two inputs, from what makes its layers and its optimizer."""
    with strategy.scope():
        model = keras.Sequential([layers.InputLayer([2]), *all_layers()])
        model.compile(optimizer(), "mse")
    return model


def zeros(aggregation=tf.VariableAggregation.MEAN):
    """Returns a weight, of which all replicas of a worker say the same by default."""
    with strategy.scope():
        return tf.Variable(tf.zeros([3]), name="weight", aggregation=aggregation)


def stepping(change):
    """Returns a training step that makes a change."""

    @tf.function
    def step(*inputs):
        strategy.run(change, inputs)

    return step


def check_moving_statistics_are_shared_and_kept_by_a_batch_without_examples():
    """The one row of each batch is the first worker's."""
    if mode == "sync":
        return
    model = made(
        lambda: [layers.BatchNormalization(momentum=0.5), layers.Dense(1)],
        lambda: optimizers.Adam(0.0),
    )
    normalization = model.layers[0]
    x, y = np.array([[3.0, 5.0]], np.float32), np.zeros([1, 1], np.float32)
    for _ in range(2):
        model.fit(x, y, batch_size=1, verbose=0)
    mean, variance = normalization.moving_mean, normalization.moving_variance
    shared_out = size if mode == "geo" else 1
    np.testing.assert_allclose(on_servers(mean), x[0] * 0.75 / shared_out, rtol=1e-6)
    np.testing.assert_allclose(on_servers(variance), 1 - 0.75 / shared_out, rtol=1e-6)


def check_a_step_without_examples_sends_nothing():
    if mode in ("geo", "sync"):
        return
    weight = zeros()
    step = stepping(lambda rows: weight.assign_add(tf.ones([3])))
    for rows in (rank, 1):
        step(tf.zeros([rows, 2]))
    np.testing.assert_array_equal(on_servers(weight), np.full([3], 2 * size - 1))


def check_a_step_without_examples_does_not_train_a_workers_own_copy():
    """The momentum of the steps before would move it."""
    if mode != "geo":
        return
    ones = {"use_bias": False, "kernel_initializer": "ones"}
    model = made(
        lambda: [layers.Dense(1, **ones)],
        lambda: optimizers.SGD(0.1, momentum=0.5, weight_decay=0.1),
    )
    state = [model.optimizer.iterations]
    seen = []
    for rows in (size * options.get("num_replicas", 1), 1):  # the one row is the first worker's
        x, y = np.ones([rows, 2], np.float32), np.zeros([rows, 1], np.float32)
        model.fit(x, y, batch_size=rows, verbose=0)
        seen.append([np.array(variable.numpy()) for variable in (*state, *slots(model.optimizer))])
        strategies.barrier(strategy)
    assert seen[0][0] == 1 and np.all(seen[0][-1] != 0), seen
    assert seen[1][0] == (2 if rank == 0 else 1), seen
    assert np.array_equal(seen[0][-1], seen[1][-1]) == (rank > 0), seen


def check_a_setting_that_changes_is_heeded():
    """Momentum is a plain value in the update that the servers have."""
    if mode == "geo":
        return
    model = made(lambda: [layers.Dense(1)], lambda: optimizers.SGD(0.1, momentum=0.5))
    x, y = np.ones([size * 4, 2], np.float32), np.ones([size * 4, 1], np.float32)
    model.fit(x, y, batch_size=size * 4, verbose=0)
    model.optimizer.momentum = model.optimizer.learning_rate = 0.0
    with strategy.scope():
        model.compile(model.optimizer, "mse")
    before = on_servers(model.trainable_variables[0])
    model.fit(x, y, batch_size=size * 4, verbose=0)
    np.testing.assert_array_equal(on_servers(model.trainable_variables[0]), before)


def slots(optimizer):
    """Returns the slot variables of an optimizer."""
    return [each for each in optimizer.variables if len(each.shape)]


def check_models_in_turn_are_all_exchanged():
    if mode != "geo":
        return
    weights = zeros(), zeros()
    steps = [stepping(lambda w=weight: w.assign_add(tf.ones([3]))) for weight in weights]
    for _ in range(2):
        for step in steps:
            step()
    for weight in weights:
        np.testing.assert_allclose(on_servers(weight), 2.0)


def check_a_value_that_is_given_stays():
    weight = zeros()
    step = stepping(lambda: weight.assign_add(tf.zeros([3])))
    step()
    extended.update_mode.drain()
    weight.assign([7.0, 8.0, 9.0])
    step()
    np.testing.assert_array_equal(weight.numpy(), [7, 8, 9])
    np.testing.assert_array_equal(on_servers(weight), [7, 8, 9])


@contextlib.contextmanager
def nothing_is_sent():
    """Keeps steps of "async" in the queue in the block; yields the number of those in it."""
    sending, may_send = extended.update_mode, threading.Event()
    deliver = sending._deliver

    def wait_and_deliver(*arguments):
        assert may_send.wait(300)
        deliver(*arguments)

    sending._deliver = wait_and_deliver
    try:
        yield lambda: sending._queue.unfinished_tasks
    finally:
        may_send.set()
        sending._deliver = deliver


def check_a_query_leaves_the_queue_as_it_is_and_what_saves_does_not():
    if mode != "async":
        return
    with strategy.scope():
        weight = keras.Variable(np.zeros([3], np.float32), name="weight")
        optimizer = optimizers.SGD(1.0, momentum=0.9)
        optimizer.build([weight])
    (momentum,) = [shared(each) for each in slots(optimizer)]
    step = stepping(lambda: optimizer.apply([tf.ones([3])], [weight]))
    step()
    strategies.barrier(strategy)
    before = momentum.numpy()
    strategies.barrier(strategy)
    with nothing_is_sent() as count_queued:
        step()
        assert strategies.worker_rank(strategy) == rank
        strategies.own_path("checkpoint", strategy)
        assert not extended._is_updated_on_servers(tf.Variable(0.0))
        assert count_queued() == 1
    # What reads the servers' values, and what saves, waits for this worker's own steps.
    assert np.all(momentum.numpy() < before - 0.5), (momentum.numpy(), before)
    for save in (lambda: strategies.barrier(strategy), write_nothing):
        step()
        save()
        assert extended.update_mode._queue.unfinished_tasks == 0


def write_nothing():
    with strategies.writing("nothing", strategy) as path:
        open(path, "w").close()


def check_what_another_step_brought_stays():
    weight, own = zeros(), zeros()

    def change_both():
        weight.assign_add(tf.ones([3]))
        own.assign_add(tf.ones([3]))

    first, second = stepping(change_both), stepping(lambda: weight.assign_add(tf.ones([3])))
    first()
    extended.update_mode.drain()
    for _ in range(5):
        second()
        extended.update_mode.drain()
    before = weight.numpy()
    first()
    assert np.all(weight.numpy() >= before), (weight.numpy(), before)
    strategies.barrier(strategy)


def check_the_servers_present_values_are_evaluated():
    """Of several workers, the others may change them meanwhile."""
    if mode in ("geo", "sync") or size > 1:
        return
    model = made(lambda: [layers.Dense(1)], lambda: optimizers.SGD(0.1))
    x, y = np.ones([4, 2], np.float32), np.ones([4, 1], np.float32)
    model.fit(x, y, batch_size=4, epochs=3, verbose=0)
    found = model.evaluate(x, y, verbose=0)
    kernel, bias = (on_servers(weight) for weight in model.trainable_variables)
    np.testing.assert_allclose(found, np.mean((x @ kernel + bias - y) ** 2), rtol=1e-4, atol=1e-9)


def check_a_changed_variable_is_not_read_before_the_step_is_complete():
    """The servers change it, and what is here would be the old value."""
    weight, other = zeros(), zeros()

    def change():
        weight.assign_add(tf.ones([3]))
        other.assign_add(weight + 0.0)

    if mode == "geo":
        stepping(change)()
        np.testing.assert_array_equal(other.numpy(), 1.0)
        return
    with raises(ValueError, "read after it was changed in the same step"):
        stepping(change)()
    # The step that failed has left nothing behind.
    stepping(lambda: other.assign_add(weight + tf.ones([3])))()
    changed = 1 if mode == "sync" else size
    np.testing.assert_array_equal(on_servers(other), changed)


def check_an_assignment_is_aggregated():
    aggregations = tf.VariableAggregation.SUM, tf.VariableAggregation.MEAN
    replicas = options.get("num_replicas", 1)
    for aggregation in aggregations:
        weight = zeros(aggregation)
        stepping(lambda w=weight: w.assign(tf.fill([3], rank + 1.0)))()
        stepping(lambda w=weight: w.assign_add(tf.fill([3], rank + 1.0)))()
        if mode != "sync":
            continue
        total = size * (size + 1) / 2
        is_sum = aggregation == tf.VariableAggregation.SUM
        expected = total * replicas if is_sum else total / size
        np.testing.assert_allclose(on_servers(weight), 2 * expected)


def check_muon_decays_what_the_servers_have():
    if not hasattr(optimizers, "Muon") or mode in ("geo", "sync"):
        return
    with strategy.scope():
        kernel = keras.Variable(np.ones([2, 2], np.float32), name="kernel")
        optimizer = optimizers.Muon(0.5, weight_decay=0.5)
        optimizer.build([kernel])
    if rank == 0:
        # As another worker has it changed, since this one pulled.
        extended.registry.write(kernel.value.remote, np.full([2, 2], 11.0, np.float32))
        stepping(lambda: optimizer.apply([tf.zeros([2, 2])], [kernel]))()
    np.testing.assert_allclose(on_servers(kernel), 11 - 0.25)


def check_layers_that_are_excluded_do_not_decay():
    def optimizer():
        made = optimizers.SGD(1.0, weight_decay=0.5)
        made.exclude_from_weight_decay(var_names=["last"])
        return made

    ones = {"use_bias": False, "kernel_initializer": "ones"}
    model = made(lambda: [layers.Dense(2, **ones), layers.Dense(1, name="last", **ones)], optimizer)
    x, y = np.zeros([size, 2], np.float32), np.zeros([size, 1], np.float32)
    model.fit(x, y, batch_size=size, epochs=2, verbose=0)
    first, last = (on_servers(weight) for weight in model.trainable_variables)
    assert np.all(first < 1.0), first
    np.testing.assert_array_equal(last, 1.0)


if __name__ == "__main__":
    run_checks(globals())
