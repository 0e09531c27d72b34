"""Trains until it is told to stop, while servers are killed; every number has a closed form.

servers_restarted.py MODE DIRECTORY [PAUSE], where the mode "geo-forgets" keeps no rows

The row of an id is n * [id + 1, 1], where n is how often its gradients were applied (in "geo", what
the workers have sent of that, bit by bit), and each element of `count` is the number of steps that
its server has applied (except in "geo"). A line with the number of steps goes to
DIRECTORY/steps-<rank> after each step, and at the start the process's
number to DIRECTORY/pids-<rank>. It stops when there is a file DIRECTORY/stop.
"""

import os
import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import strategies

(mode, _, forgets), directory = sys.argv[1].partition("-"), Path(sys.argv[2])
pause = float(sys.argv[3]) if len(sys.argv) > 3 else 0.005
of_modes = {"geo": {"geo_steps": 3}, "async": {"max_merge": 3}}
options = {**of_modes.get(mode, {}), **({"geo_row_cache": 0} if forgets else {})}
strategy = strategies.from_tf_config(
    options=strategies.ParameterServerOptions(mode, min_slice_size=4, **options)
)
extended = strategy.extended
servers, rank = extended.servers.servers, strategies.worker_rank(strategy)
with open(directory / f"pids-{rank}", "a") as file:
    file.write(f"{os.getpid()}\n")
taken, take = 0, extended.update_mode.step


def counted(*arguments):
    global taken
    taken += 1
    return take(*arguments)


extended.update_mode.step = counted


class Count(keras.layers.Layer):
    """A weight that each step increments, an equal part of it on each server."""

    def build(self, shape):
        self.count = self.add_weight(shape=[4 * len(servers)], initializer="zeros", name="count")


with strategy.scope():
    counter = Count()
    counter.build(None)
    layer = strategies.DistributedEmbedding(2, embeddings_initializer="zeros", name="rows")
    layer.build(None)
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build([*counter.trainable_variables, *layer.trainable_variables])


def train(ids):
    with tf.GradientTape() as tape:
        rows = layer(ids)
        units = tf.stack([tf.cast(ids, tf.float32) + 1, tf.ones(tf.shape(ids))], 1)
        loss = -tf.reduce_sum(rows * units) - tf.reduce_sum(counter.count)
    variables = [*counter.trainable_variables, *layer.trainable_variables]
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


@tf.function(input_signature=[tf.TensorSpec([16], tf.int64)])
def step(ids):
    strategy.run(train, (ids,))


random = np.random.default_rng(rank)
steps = 0
with open(directory / f"steps-{rank}", "a", buffering=1) as progress:
    while not (directory / "stop").exists():
        # There are always new ids, which get the places that those of a lost server had.
        step(tf.constant(random.integers(0, 100 + 3 * steps, [16])))
        steps += 1
        progress.write(f"{steps}\n")
        time.sleep(pause)
extended.drain()
strategies.barrier(strategy)
made = {s.number: extended.registry.read_counter(extended.pushes, s) for s in servers}
for number, by_rank in made.items():
    print(f"steps of worker {rank}: {taken} taken, {by_rank[rank]} made on ps {number}", flush=True)
if mode != "geo":
    remote = counter.count.value.remote
    assert len(remote.slices) == len(servers)
    (values,) = extended.registry.read([remote])
    for part in remote.slices:
        assert (values[part.start : part.stop] == made[part.server].sum()).all(), (values, made)
    for number in made:
        iterations = extended.registry.read_counter(
            optimizer.iterations.value.remote, servers[number]
        )
        assert iterations == made[number].sum(), (iterations, made)
ids, rows = layer.rows()
assert len(ids) == len(set(ids.tolist()))
np.testing.assert_array_equal(rows[:, 0], (ids + 1) * rows[:, 1])
# In "geo", each of N workers adds 1/N of what it has changed; these are halves, which are exact. If
# it keeps rows, it also adds halves of what is left of earlier changes.
parts = extended.servers.size if mode == "geo" else 1
is_exact = (rows[:, 1] * parts == np.round(rows[:, 1] * parts)).all()
assert is_exact or (mode == "geo" and not forgets), rows
assert (rows >= 0).all()
assert not len(ids) or rows.max() > 0
print("passed", flush=True)
