"""A program that gets SIGTERM while a checkpoint is being written, which takes seconds.

terminated.py DIRECTORY
"""

import os
import signal
import sys
import time

import keras
import numpy as np

import strategies


class Terminate(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 6:
            print("terminates after step", batch, flush=True)
            os.kill(os.getpid(), signal.SIGTERM)


flush = os.fsync


def flush_slowly(descriptor):
    time.sleep(1)
    flush(descriptor)


os.fsync = flush_slowly
model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
model.compile("adam", "mse")
checkpoint = strategies.callbacks.Checkpoint(sys.argv[1], every_steps=5)
model.fit(np.ones([400, 4]), np.ones([400, 1]), 4, verbose=0, callbacks=[checkpoint, Terminate()])
print("goes on")
