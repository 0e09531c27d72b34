"""Trains a linear model under parameter servers, epoch after epoch, and writes down how it goes.

steady.py MODE DIRECTORY EPOCHS [checkpoint]

After each epoch a line "epoch loss iterations" goes to DIRECTORY/worker-<index>, and at the start
the process's number to DIRECTORY/pids-<index>. It ends after EPOCHS, or when there is a file
DIRECTORY/stop. With "checkpoint" the first worker writes one after
each epoch, and training goes on from the last one.
"""

import json
import os
import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import strategies

INPUTS, ROWS, STEPS = 64, 32, 20

mode, directory, epochs = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
with open(directory / f"pids-{index}", "a") as started:
    started.write(f"{os.getpid()}\n")
strategy = strategies.from_tf_config(mode=mode)


class Progress(keras.callbacks.Callback):
    def on_batch_end(self, batch, logs=None):
        time.sleep(0.005)  # the other processes of the test have their turn

    def on_epoch_end(self, epoch, logs=None):
        with open(directory / f"worker-{index}", "a") as file:
            file.write(f"{epoch} {logs['loss']} {int(self.model.optimizer.iterations.numpy())}\n")
        if (directory / "stop").exists():
            self.model.stop_training = True


def data(_):
    """Returns this worker's batches; the loss can fall to 0, for there is no noise."""
    solution = np.random.default_rng(0).standard_normal([INPUTS, 1])
    x = np.random.default_rng(index + 1).standard_normal([100 * ROWS, INPUTS])
    x, y = x.astype("float32"), (x @ solution).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(ROWS, drop_remainder=True).repeat()


with strategy.scope():
    model = keras.Sequential([keras.Input([INPUTS]), keras.layers.Dense(1, use_bias=False)])
    model.compile(keras.optimizers.SGD(5e-4), "mse")
callbacks = [Progress()]
if "checkpoint" in sys.argv:
    backup = keras.callbacks.BackupAndRestore(str(directory / "backup"), delete_checkpoint=False)
    callbacks.append(strategies.callbacks.on_first_worker(backup, strategy))
dataset = strategy.distribute_datasets_from_function(data)
model.fit(
    dataset,
    epochs=epochs,
    steps_per_epoch=STEPS,
    callbacks=callbacks,
    verbose=0,
    shuffle=False,
)
strategy.extended.update_mode.drain()
strategies.barrier(strategy)
count = model.optimizer.iterations.value
if mode in ("async", "half_async"):  # where a worker's copy may lack the others' last steps
    (count,) = strategy.extended.registry.read([count.remote])
print("iterations at the end:", int(np.asarray(count)), flush=True)
