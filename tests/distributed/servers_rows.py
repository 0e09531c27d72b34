"""A large table that a step changes in some rows: each worker pulls only these.

servers_rows.py keras|tf_keras MODE [other options of ParameterServerStrategy as JSON]
"""

import importlib
import json
import sys

import numpy as np
import tensorflow as tf

import strategies
from tests.support.checks import run_checks

ROWS, WIDTH, STEPS, IDS, RATE = 20000, 4, 12, 24, 0.5

keras, mode = importlib.import_module(sys.argv[1]), sys.argv[2]
options = json.loads(sys.argv[3] if len(sys.argv) > 3 else "{}")
strategy = strategies.from_tf_config(mode=mode, **{"min_slice_size": 32, **options})
extended = strategy.extended
rank, size = extended.workers.rank, extended.workers.size
replicas = options.get("num_replicas", 1)


class Trained:
    """A table of zeros, whose rows are lowered by RATE each time that an id occurs.

    Attributes:
      pulled: the sizes of the largest arrays that came back from the servers.
    """

    def __init__(self):
        with strategy.scope():
            self.layer = keras.layers.Embedding(ROWS, WIDTH, "zeros")
            self.layer.build([None, IDS])
        (self.weight,) = self.layer.trainable_variables
        self.pulled = []

    def step_with(self, optimizer):
        """Returns a step of an optimizer, which takes ids."""

        def train(ids):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(self.layer(ids))
            gradients = tape.gradient(loss, [self.weight])
            optimizer.apply_gradients(zip(gradients, [self.weight], strict=True))

        @tf.function
        def step(ids):
            strategy.run(train, (ids,))

        return step

    def copies(self):
        """Returns the values of this worker's copies."""
        return [copy.numpy() for copy in shared(self.weight).values]

    def follows_servers(self, step):
        """Takes steps that change nothing; returns the copies' value, which is the servers' one."""
        for _ in range(2):
            step(ids_of(0))
            extended.update_mode.drain()
        for copy in self.copies():
            np.testing.assert_array_equal(copy, on_servers(self.weight))
        return self.copies()[0]


def shared(variable):
    """Returns the variable inside of Keras 3's."""
    return variable.value if hasattr(variable, "path") else variable


def on_servers(variable):
    """Returns a variable's value when the steps of all workers are there."""
    extended.update_mode.drain()
    strategies.barrier(strategy)
    value = extended.registry.read([shared(variable).remote])[0]
    strategies.barrier(strategy)
    return value


def sgd(**settings):
    with strategy.scope():
        return keras.optimizers.SGD(RATE, **settings)


def ids_of(step, worker=rank):
    """Returns the ids of a worker's step; some occur several times."""
    random = np.random.default_rng([worker, step])
    return tf.constant(random.integers(0, ROWS, [IDS]).repeat(2))


def counts():
    """Returns how often each id occurs in the steps of all workers."""
    ids = [ids_of(step, worker) for step in range(STEPS) for worker in range(size)]
    return replicas * np.bincount(np.concatenate(ids), minlength=ROWS)[:, None]


def notes_pulls(trained):
    """Notes how much comes back from the servers from now on."""
    pull = extended.update_mode.step

    def step(program, push):
        arrays = pull(program, push)
        trained.pulled += [] if arrays is None else [max(array.size for array in arrays)]
        return arrays

    extended.update_mode.step = step


def check_only_changed_rows_come_back_and_none_is_lacked():
    trained, optimizer = Trained(), sgd()
    step = trained.step_with(optimizer)
    step(ids_of(0))
    extended.update_mode.drain()
    notes_pulls(trained)
    for number in range(1, STEPS):
        step(ids_of(number))
    expected = np.broadcast_to(-RATE * counts(), [ROWS, WIDTH])
    np.testing.assert_array_equal(on_servers(trained.weight), expected)
    optimizer.learning_rate.assign(0.0)
    np.testing.assert_array_equal(trained.follows_servers(step), expected)
    # The first two are of the whole table, which the worker had not pulled before. On a busy
    # machine, there may have been no others yet.
    for _ in range(100):
        if len(trained.pulled) > 2:
            break
        extended.update_mode.drain()
        step(ids_of(0))
    is_by_rows = keras.__name__ == "keras"  # tf_keras's SGD always has a momentum
    assert (trained.pulled[-1] < ROWS * WIDTH / 4) == is_by_rows, trained.pulled


def check_a_value_that_is_given_is_pulled_as_a_whole():
    trained, optimizer = Trained(), sgd()
    step = trained.step_with(optimizer)
    for number in range(STEPS):
        step(ids_of(number))
    on_servers(trained.weight)
    value = np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)
    if rank == 0 or mode == "sync":
        trained.weight.assign(value)
    strategies.barrier(strategy)
    optimizer.learning_rate.assign(0.0)
    np.testing.assert_array_equal(trained.follows_servers(step), value)


def check_what_another_optimizer_changes_is_pulled():
    """It changes all rows, for it has a momentum."""
    trained, first, second = Trained(), sgd(), sgd(momentum=0.9)
    step, other = trained.step_with(first), trained.step_with(second)
    for number in range(STEPS):
        step(ids_of(number))
        other(ids_of(number))
    before = on_servers(trained.weight)
    assert np.all(before <= -2 * RATE * counts()), "momentum adds to it"
    first.learning_rate.assign(0.0)
    np.testing.assert_array_equal(trained.follows_servers(step), before)


if __name__ == "__main__":
    run_checks(globals())
