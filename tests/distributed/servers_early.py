"""mode="sync": a worker ends before the others, which go on.

Each worker's gradient is 1 and the learning rate 1, so a step takes from the weight the part of
the workers that are still there.
"""

import keras
import numpy as np
import tensorflow as tf

import strategies

ROWS, STEPS = 12, 6

strategy = strategies.from_tf_config(mode="sync", min_slice_size=1)
workers = strategy.extended.workers
with strategy.scope():
    model = keras.Sequential([keras.layers.Input([4]), keras.layers.Dense(1, use_bias=False)])
    model.compile(keras.optimizers.SGD(1.0), lambda _, y: y[:, 0])
    rows = strategies.DistributedEmbedding(1, embeddings_initializer="zeros")
    table = keras.Sequential([keras.layers.Input([1], dtype="int64"), rows, keras.layers.Flatten()])
    table.compile(keras.optimizers.SGD(1.0), lambda _, y: y[:, 0])
model.set_weights([np.zeros([4, 1], np.float32)])
x = np.ones([ROWS * STEPS, 4], np.float32)
ids = np.arange(ROWS * STEPS)[:, np.newaxis] % ROWS


def trained(here):
    before = model.get_weights()[0]
    losses = model.fit(x, x[:, :1], batch_size=ROWS, verbose=0).history["loss"]
    steps = np.arange(STEPS) * 4 * here / workers.size  # of a step each of four weights
    np.testing.assert_allclose(losses, before.sum() - steps.mean(), rtol=1e-5)
    taken = (before - model.get_weights()[0]) / STEPS
    np.testing.assert_allclose(taken, here / workers.size, rtol=1e-5)


def trained_rows(here):
    """In each step, each worker has ids that no other has."""
    before = all_rows()
    table.fit(ids, x[:, :1], batch_size=ROWS, shuffle=False, verbose=0)
    owners = np.arange(ROWS) // (ROWS // workers.size)
    expected = np.where(owners >= workers.size - here, STEPS / ROWS, 0)
    np.testing.assert_allclose(before - all_rows(), expected, rtol=1e-5)


def all_rows():
    mine = np.zeros(ROWS, np.float32)
    if table.optimizer.variables:
        strategies.barrier(strategy)
        found, values = rows.rows()
        mine[found] = values[:, 0]
    return workers.all_reduce([tf.constant(mine)])[0].numpy()


# The first one ends first, which sends to the servers what all have come to.
for ended in range(workers.rank + 1):
    trained(workers.size - ended)
    trained_rows(workers.size - ended)
    if ended:
        assert strategy.extended.servers.present == [rank >= ended for rank in range(workers.size)]
iterations = int(model.optimizer.iterations.numpy())
assert iterations == STEPS * (workers.rank + 1), iterations
if workers.rank == workers.size - 1:
    # What goes to all workers still comes from one that is there, and what is asked of all is.
    assert int(workers.broadcast(tf.constant(workers.rank))) == workers.rank
    strategies.verify_equal(strategy, model.variables)
    # All rows are evaluated, those too that would have been another's; a mean is of who is there.
    rows = np.arange(len(x), dtype=np.float32)
    found = model.evaluate(x * rows[:, None], x[:, :1], batch_size=ROWS, verbose=0)
    np.testing.assert_allclose(found, rows.mean() * model.get_weights()[0].sum(), rtol=1e-5)
    mean = strategy.reduce("MEAN", tf.constant(3.0), axis=None)
    np.testing.assert_allclose(mean, 3.0)
print("passed")
