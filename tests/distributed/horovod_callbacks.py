"""A plain Horovod script for tf_keras: its optimizer and its callbacks, and Keras's `fit`."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

hvd.init()
tf.keras.utils.set_random_seed(hvd.rank())
model = tf.keras.Sequential([tf.keras.layers.Dense(4, activation="relu"), tf.keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.legacy.SGD(0.1)), "mse")
numbers = np.random.default_rng(hvd.rank())
x = numbers.normal(size=[64, 3]).astype("float32")
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
model.fit(x, x.sum(1, keepdims=True), batch_size=8, epochs=2, verbose=0, callbacks=callbacks)
everybody = hvd.allgather(np.concatenate([w.ravel() for w in model.get_weights()])[None])
assert len(everybody) == hvd.size() > 1
assert (np.asarray(everybody) == np.asarray(everybody)[0]).all()
print("passed")
