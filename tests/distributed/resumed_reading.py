"""Trains on files, is killed at nine tenths of an epoch, and counts what it reads when it resumes.

resumed_reading.py DIRECTORY [--kill] [--files]

Each line of the files has LINE_BYTES bytes. It prints the SHA-256 of the weights, and how many
bytes `fit` has read in this process.
"""

import argparse
import hashlib
import os
import signal
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import strategies
from tf_config import TFConfig

LINE_BYTES, LINES_OF_A_FILE, FILES = 2048, 1000, 8
BATCH, SHUFFLE, EVERY = 20, 100, 10
STEPS = LINES_OF_A_FILE * FILES // BATCH


def bytes_read():
    """Returns how many bytes this process has read."""
    (line,) = (each for each in Path("/proc/self/io").read_text().splitlines() if "rchar" in each)
    return int(line.split()[1])


class Kill(keras.callbacks.Callback):
    """Ends the last worker by SIGKILL at nine tenths of the epoch."""

    def on_train_batch_end(self, batch, logs=None):
        if batch + 1 == STEPS * 9 // 10:
            os.kill(os.getpid(), signal.SIGKILL)


def write_files(folder):
    for number in range(FILES):
        if not (path := folder / f"{number}.txt").exists():
            # By the number of the file, because another worker may have written those before.
            values = np.random.default_rng(number).normal(size=[LINES_OF_A_FILE, 4])
            lines = [" ".join(map("{:.6f}".format, each)) for each in values]
            partial = folder / f"partial-{os.getpid()}"
            partial.write_text("".join(f"{line:<{LINE_BYTES - 1}}\n" for line in lines))
            partial.rename(path)


def parse(line):
    numbers = tf.strings.to_number(tf.strings.split(tf.strings.strip(line)))
    numbers = tf.ensure_shape(numbers, [4])
    return numbers, tf.reduce_sum(numbers, keepdims=True)


def read(file):
    return tf.data.TextLineDataset(file).map(parse)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--files", action="store_true", help="data of read_files")
    arguments = parser.parse_args()
    keras.utils.set_random_seed(7)
    strategy = strategies.from_tf_config()
    task = TFConfig.from_env()
    workers = 1 if task is None else len(task.cluster.training_tasks)
    rank = strategies.worker_rank(strategy)
    arguments.directory.mkdir(parents=True, exist_ok=True)
    write_files(arguments.directory)
    strategies.barrier(strategy)
    pattern = f"{arguments.directory}/*.txt"
    if arguments.files:
        data = strategies.read_files(pattern, strategy, BATCH, reader=read, shuffle=SHUFFLE, seed=1)
    else:
        lines = tf.data.TextLineDataset(sorted(map(str, arguments.directory.glob("*.txt"))))
        data = lines.shuffle(SHUFFLE, seed=1).map(parse).batch(BATCH)
        # Several workers need the length, without which they would ask one another in each step.
        data = data.apply(tf.data.experimental.assert_cardinality(STEPS))
    with strategy.scope():
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
        model.compile("adam", "mse")
    # In the background, a checkpoint may be some dozen of these short steps old.
    saved = arguments.directory / "saved"
    callbacks = [strategies.callbacks.Checkpoint(saved, every_steps=EVERY, background=False)]
    restarts = int(os.environ.get("KERAS_STRATEGIES_RESTARTS", "0"))
    if arguments.kill and not restarts and rank == workers - 1:
        callbacks.append(Kill())
    before = bytes_read()
    model.fit(data, verbose=0, shuffle=False, callbacks=callbacks)
    read_in_fit = bytes_read() - before
    digest = hashlib.sha256(b"".join(each.tobytes() for each in model.get_weights())).hexdigest()
    print(f"weights {rank} {digest} {int(model.optimizer.iterations.numpy())}", flush=True)
    print(f"read {rank} {read_in_fit} bytes", flush=True)


if __name__ == "__main__":
    main()
