"""A program that is killed again and again, and ends as if it had not been.

killed_training.py DIRECTORY [--kill STEP ...] [--lost N]

With --kill the last worker is killed after so many steps in all, each time once; with --lost the
last of N workers fails whenever it is started again. It prints the SHA-256 of all weights at the
end.
"""

import argparse
import hashlib
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import strategies
from tf_config import TFConfig

parser = argparse.ArgumentParser()
parser.add_argument("directory", type=Path)
parser.add_argument("--kill", type=int, nargs="*", default=[])
parser.add_argument("--pause", type=float, default=0.0, help="seconds after each step")
parser.add_argument("--every", type=int, default=3)
parser.add_argument(
    "--flush", type=float, default=0.0, help="seconds that each flush to disk takes"
)
parser.add_argument("--embedding", action="store_true")
parser.add_argument("--evict", action="store_true", help="rows of ids that a full table evicts")
parser.add_argument("--lost", type=int, default=0, help="of so many workers the last is lost")
parser.add_argument("--replicas", type=int)
parser.add_argument("--strategy", help="of one process with two replicas")
parser.add_argument("--mode", default="sync", help="of parameter servers")
parser.add_argument("--uneven", action="store_true", help="a batch less on each next worker")
parser.add_argument("--files", action="store_true", help="data of read_files, never read twice")
parser.add_argument("--reduce", action="store_true", help="split the optimizer's state")
arguments = parser.parse_args()

if arguments.flush:  # so that a checkpoint of a small model is written during many steps
    flush = os.fsync

    def flush_slowly(descriptor):
        time.sleep(arguments.flush)
        flush(descriptor)

    os.fsync = flush_slowly
task = TFConfig.from_env()
count = 1 if task is None else len(task.cluster.training_tasks)
restarts = int(os.environ.get("KERAS_STRATEGIES_RESTARTS", "0"))
if restarts and arguments.lost == count == task.task.index + 1:
    sys.exit("This worker is lost.")
keras.utils.set_random_seed(7)
options = [strategies.ParameterServerOptions(arguments.mode)]
if arguments.mode == "geo":
    options = [strategies.ParameterServerOptions("geo", geo_steps=3)]
if arguments.reduce:
    options.append(strategies.ReductionOptions(mode="reduce", split_above=8))
if arguments.strategy:
    strategy = getattr(strategies, arguments.strategy)(num_replicas=2)
else:
    strategy = strategies.from_tf_config(num_replicas=arguments.replicas, options=options)
rank = strategies.worker_rank(strategy)


class Kill(keras.callbacks.Callback):
    """Ends the last worker by SIGKILL after a number of steps, as often as there are numbers."""

    def on_train_begin(self, logs=None):
        print("begins behind step", int(self.model.optimizer.iterations.numpy()), flush=True)

    def on_train_batch_end(self, batch, logs=None):
        step = int(self.model.optimizer.iterations.numpy())
        if arguments.pause:
            print("step", step, flush=True)
            time.sleep(arguments.pause)
        last = rank == count - 1
        if last and restarts < len(arguments.kill) and step >= arguments.kill[restarts]:
            os.kill(os.getpid(), signal.SIGKILL)


random = np.random.default_rng(0)
x = random.normal(size=[60, 4]).astype("float32")
y = (x.sum(axis=1, keepdims=True) > 0).astype("float32")
ids = random.integers(0, 40 if arguments.evict else 20, [60, 1])
data = data_of_all = tf.data.Dataset.from_tensor_slices(((x, ids), y)).shuffle(60).batch(8)
if arguments.files:
    folder = Path(tempfile.mkdtemp())
    for number in range(4):
        lines = [" ".join(map(str, [*x[n], ids[n, 0], y[n, 0]])) for n in range(number, 60, 4)]
        (folder / f"{number}.txt").write_text("\n".join(lines))

    def read(file):
        numbers = tf.data.TextLineDataset(file).map(tf.strings.split).map(tf.strings.to_number)
        numbers = numbers.map(lambda each: tf.ensure_shape(each, [6]))
        return numbers.map(lambda each: ((each[:4], tf.cast(each[4:5], tf.int64)), each[5:]))

    data = strategies.read_files(f"{folder}/*.txt", strategy, 8, reader=read, shuffle=10)

    def refuse(*_):
        raise AssertionError("Data are read again.")

    strategies.callbacks.Checkpoint._skip = refuse
with strategy.scope():
    inputs = keras.Input([4]), keras.Input([1], dtype="int64")
    hidden = keras.layers.Dense(8, "relu")(inputs[0])
    if arguments.embedding:
        # Of the 40 ids, one of two workers has place for 9, and a step has 8.
        bound = {"input_dim": 18, "overflow": "evict"} if arguments.evict else {}
        rows = strategies.DistributedEmbedding(4, name="rows", **bound)(inputs[1])
        hidden = keras.layers.Concatenate()([hidden, keras.layers.Flatten()(rows)])
    hidden = keras.layers.Dropout(0.5)(keras.layers.BatchNormalization()(hidden))
    outputs = keras.layers.Dense(1, "sigmoid")(hidden)
    model = keras.Model(inputs, outputs)
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
if arguments.uneven:
    data = strategy.distribute_datasets_from_function(lambda _: data_of_all.take(8 - rank))
history = model.fit(
    data,
    epochs=4,
    verbose=0,
    shuffle=False,
    callbacks=[
        strategies.callbacks.Checkpoint(arguments.directory, every_steps=arguments.every),
        Kill(),
    ],
)
values = [variable.numpy() for variable in model.variables if "rows" not in variable.path]
if arguments.embedding:
    values += model.get_layer("rows").rows()
digest = hashlib.sha256(b"".join(np.ascontiguousarray(value).tobytes() for value in values))
print("weights", rank, digest.hexdigest(), int(model.optimizer.iterations.numpy()), flush=True)
if arguments.evict:
    evicted = model.get_layer("rows").statistics()["rows"]["evicted"]
    assert evicted, "no row was evicted"
print("loss", *history.history["loss"][-1:], flush=True)
