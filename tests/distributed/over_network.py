"""Trains under what TF_CONFIG says, a step every tenth of a second, and prints how it goes.

over_network.py STEPS [MODE]

It prints "step N" after each step, and the SHA-256 of the weights at the end.
"""

import hashlib
import sys
import time

import keras
import numpy as np

import strategies

steps = int(sys.argv[1])
keras.utils.set_random_seed(7)
strategy = strategies.from_tf_config(**({"mode": sys.argv[2]} if sys.argv[2:] else {}))
random = np.random.default_rng(0)
x = random.normal(size=[8 * steps, 4]).astype("float32")
y = x.sum(axis=1, keepdims=True)


class Step(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print("step", batch + 1, flush=True)
        time.sleep(0.1)


with strategy.scope():
    model = keras.Sequential(
        [keras.Input([4]), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)]
    )
    model.compile("sgd", "mse")
model.fit(x, y, batch_size=8, verbose=0, shuffle=False, callbacks=[Step()])
values = b"".join(value.tobytes() for value in model.get_weights())
print("weights", hashlib.sha256(values).hexdigest(), np.isfinite(model.get_weights()[0]).all())
