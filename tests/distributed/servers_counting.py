"""The modes that wait for nobody, in closed form: no change is lost, and what a worker lacks.

servers_counting.py async|half_async|geo STEPS [other options of ParameterServerStrategy as JSON]

Each step of worker w takes 1 from element w of a vector, 1 from all elements of a table, 1 from a
single number, and 1/3 from all of what tells how it travels.
"""

import functools
import json
import sys
import time

import numpy as np
import tensorflow as tf

import strategies
from tests.support.checks import run_checks

mode, steps = sys.argv[1], int(sys.argv[2])
options = json.loads(sys.argv[3] if len(sys.argv) > 3 else "{}")
strategy = strategies.from_tf_config(mode=mode, min_slice_size=4, **options)
extended = strategy.extended
rank, size = extended.workers.rank, extended.workers.size
assert strategy.num_replicas_in_sync == options.get("num_replicas", 1)
with strategy.scope():
    mean = tf.VariableAggregation.MEAN  # of a worker's replicas, which say the same
    mine = tf.Variable(tf.zeros([size]), name="mine", aggregation=mean)
    table = tf.Variable(tf.zeros([6, 2]), name="table", aggregation=mean)
    number = tf.Variable(0.0, name="number", aggregation=mean)
    thirds = tf.Variable(tf.zeros([3]), name="thirds", aggregation=mean)
    given = tf.Variable(tf.zeros([6, 2]), name="given", aggregation=mean)
    moving = tf.Variable(tf.zeros([3]), trainable=False, name="moving")
    iteration = tf.Variable(
        0, trainable=False, dtype=tf.int64, name="iteration",
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )  # fmt: skip


@tf.function
def step():
    def replica():
        tf.distribute.get_replica_context()
        moving.assign_add(tf.ones([3]))
        mine.assign_sub(tf.one_hot(rank, size))
        table.assign_sub(tf.ones([6, 2]))
        number.assign_sub(tf.constant(1.0))
        thirds.assign_sub(tf.fill([3], 1 / 3))
        iteration.assign_add(1)

    strategy.run(replica)


def on_servers(variable):
    return extended.registry.read([variable.remote])[0]


@functools.cache
def trained():
    """Makes all steps.

    Returns the most steps of its own that this worker lacked, what it had at the last twelve, and
    the values on the servers after the steps of all.
    """
    lag, held = 0, []
    for made in range(1, steps + 1):
        step()
        now = int(mine.numpy()[rank])
        lag = max(lag, made + now)
        if made > steps - 12:
            extended.update_mode.drain()
            held.append(now)
    strategies.barrier(strategy)
    names = {"mine": mine, "table": table, "number": number, "thirds": thirds, "moving": moving}
    values = {name: on_servers(variable) for name, variable in names.items()}
    if mode != "geo":
        values["iteration"] = on_servers(iteration)
        values["pushes"] = extended.registry.read([extended.pushes])[0]
    strategies.barrier(strategy)
    return lag, held, values


def check_staleness_is_bounded():
    lag, held, _ = trained()
    if mode == "geo":
        return
    bounds = {"half_async": 0, "async": 0}
    if mode == "async":
        waiting = options.get("send_queue_size", 1)
        bounds["async"] = waiting + options.get("pull_every", 1) - 1
    assert lag <= bounds[mode], (lag, bounds)
    # Where each step is sent before the next one, a value is held between two pulls.
    every = options.get("pull_every", 1)
    assert len(set(held)) - 12 // every in (0, 1), (held, every)


def check_no_change_is_lost():
    *_, found = trained()
    if mode == "geo":
        return
    total = steps * size
    np.testing.assert_array_equal(found["mine"], np.full([size], -steps))
    np.testing.assert_array_equal(found["table"], np.full([6, 2], -total))
    assert found["number"] == -total, found["number"]
    np.testing.assert_array_equal(found["moving"], np.full([3], total))
    wire = np.float16 if options.get("compression") else np.float32
    # So many additions in float32, one after the other, are off by 6.4e-5 in one process, too.
    np.testing.assert_allclose(found["thirds"], -total * float(wire(1 / 3)), rtol=1e-4)
    assert int(found["iteration"]) == total
    np.testing.assert_array_equal(found["pushes"], np.full([size], steps))


def check_geo_has_all_but_what_is_left_of_each_workers_progress():
    """1 - 1/N of the last exchange's, and so on."""
    *_, found = trained()
    if mode != "geo":
        return
    every = options["geo_steps"]
    sent = steps // every * every
    left = sum(every * (1 - 1 / size) ** (n + 1) for n in range(steps // every))
    np.testing.assert_allclose(found["mine"], -(sent - left), rtol=1e-5)
    np.testing.assert_allclose(found["table"], -(sent - left) * size, rtol=1e-5)
    np.testing.assert_allclose(found["number"], -(sent - left) * size, rtol=1e-5)
    np.testing.assert_allclose(found["moving"], (sent - left) * size, rtol=1e-5)
    assert int(iteration.numpy()) == steps


def check_without_progress_what_is_not_sent_shrinks_with_each_exchange():
    """By 1 - 1/N."""
    trained()
    if mode != "geo":
        return

    def unsent():
        return mine.values[0].numpy() - mine.base.numpy()

    @tf.function
    def rest():
        strategy.run(lambda: mine.assign_add(tf.zeros([size])))

    before = unsent()
    for exchange in range(1, 5):
        for _ in range(options["geo_steps"]):
            rest()
        np.testing.assert_allclose(unsent(), before * (1 - 1 / size) ** exchange, atol=2e-4)


def check_a_value_that_is_given_outside_of_a_step_is_everybodys():
    trained()
    if rank == 0:
        given.assign(np.arange(12.0).reshape(6, 2))
    strategies.barrier(strategy)
    np.testing.assert_array_equal(on_servers(given), np.arange(12.0).reshape(6, 2))
    strategies.barrier(strategy)
    time.sleep(0.1)


if __name__ == "__main__":
    run_checks(globals())
