"""Workers that are not in step, of different numbers of epochs, save checkpoints together.

servers_epochs.py MODE
"""

import sys

import keras
import numpy as np
import tensorflow as tf

import strategies
from tests.support.assertions import raises

EPOCHS, STEPS, ROWS = 3, 4, 8

strategy = strategies.from_tf_config(mode=sys.argv[1])
workers = strategy.extended.workers
x = np.ones([STEPS * ROWS, 2], "float32")


def fit(epochs):
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input([2]), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse")
    callback = strategies.callbacks.Checkpoint("checkpoints", every_steps=STEPS)
    history = model.fit(
        x, x[:, :1], batch_size=ROWS, epochs=epochs, callbacks=[callback], verbose=0
    ).history.get("loss", [])
    return model, len(history)


# The last worker stops after an epoch, and what it does then is not taken for the others' saving.
rank = workers.rank
is_last = rank == workers.size - 1
model, epochs = fit(1 if is_last else EPOCHS)
assert epochs == (1 if is_last else EPOCHS), epochs
assert model.predict(x, verbose=0).shape == (len(x), 1)
saved = [workers.broadcast(tf.constant(weight)).numpy() for weight in model.get_weights()]
strategies.barrier(strategy)
# Nor would anything else be taken for it.
with raises(Exception, "Received: 'all_gather of float32 (1,)' on worker 0, 'all_gather of"):
    workers.all_gather(tf.ones([2, 1 + rank]))
with raises(Exception, "'all_reduce of 3 numbers' on worker 0, 'all_reduce of 4 numbers' on"):
    workers.all_reduce([tf.ones([3 + rank])])
# It was saved at the end of the longest training, and nothing is left to do.
model, epochs = fit(EPOCHS)
assert epochs == 0, epochs
for one, other in zip(model.get_weights(), saved, strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-6)
print("passed")
