"""A step whose update and sum wait for other workers, in the only thread that TensorFlow has.

The optimizer scales the loss, so its update is in a branch, and the sum of the logged losses does
not wait for it: one worker could begin with the update, and the other one with the sum.
"""

import numpy as np
import tf_keras

import strategies

strategy = strategies.from_tf_config(mode="sync")
tf_keras.utils.set_random_seed(1)
tf_keras.mixed_precision.set_global_policy("mixed_float16")
with strategy.scope():
    model = tf_keras.Sequential([tf_keras.layers.Dense(4, input_shape=[6])])
    model.compile("sgd", "mse", metrics=["mae"])
x = np.random.default_rng(0).normal(size=[64, 6]).astype("float32")
history = model.fit(x, x[:, :4], batch_size=16, epochs=30, verbose=0).history
print("loss", history["loss"][0], history["loss"][-1])
