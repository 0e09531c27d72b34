"""What one number of servers trained is written by all workers at one moment, and read by others.

servers_checkpoint.py write MODE | read DIRECTORY [PLACEMENT] MODE | alone DIRECTORY
"""

import sys

import keras
import numpy as np
import tensorflow as tf

import strategies

action, *rest = sys.argv[1:]
directory = "." if action == "write" else rest[0]
if action == "alone":
    strategy = strategies.MirroredStrategy()
else:
    placement = rest[1] if len(rest) > 2 else "size"
    strategy = strategies.from_tf_config(mode=rest[-1], min_slice_size=8, placement=placement)
x = np.random.default_rng(0).normal(size=[64, 6]).astype("float32")
with strategy.scope():
    model = keras.Sequential([keras.layers.InputLayer([6]), keras.layers.Dense(5)])
    model.add(keras.layers.BatchNormalization())
    model.compile(keras.optimizers.Adam(0.01), "mse")
    model.optimizer.build(model.trainable_variables)
checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)


def values():
    return [np.asarray(v) for v in [*model.variables, *model.optimizer.variables]]


if action == "write":
    before = values()
    model.fit(x, x[:, :5], batch_size=8, epochs=3, verbose=0)
    with strategies.writing("model.weights.h5", strategy) as path:
        model.save_weights(path)
    with strategies.writing("checkpoint-1", strategy) as path:
        checkpoint.write(path)
        written = values()
    with strategies.writing("expected.npz", strategy) as path:
        np.savez(path, *written)
    iterations = int(np.asarray(model.optimizer.iterations))
    workers = strategy.extended.workers.size
    assert iterations == 24 * (1 if rest[-1] == "sync" else workers), iterations
    assert not any(np.array_equal(a, b) for a, b in zip(before[:1], written[:1], strict=True))
else:
    saved = np.load(f"{directory}/expected.npz")
    expected = [saved[name] for name in saved.files]
    for load in (
        lambda: checkpoint.restore(f"{directory}/checkpoint-1"),
        lambda: model.load_weights(f"{directory}/model.weights.h5"),
    ):
        model.set_weights([np.zeros_like(weight) for weight in model.get_weights()])
        load()
        if action == "read":
            strategies.barrier(strategy)
        # The optimizer's state and that of the model; the learning rate is not told apart.
        for number, (found, value) in enumerate(zip(values(), expected, strict=True)):
            np.testing.assert_array_equal(found, value, err_msg=str(number))
        if action == "read":
            strategies.barrier(strategy)  # the zeros of the next round are the servers', too
print("passed")
