"""Trains the synthetic model "Tiny" by TensorFlow Recommenders Addons, in one process.

tiny_tfra.py SCALE

It has no rows before they come, so it warms up until all batches came once.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf
import tensorflow_recommenders_addons as tfra
import tf_keras
import tiny


def main() -> None:
    scale = int(sys.argv[1])
    made = tiny.tables(scale)
    optimizer = tfra.dynamic_embedding.DynamicEmbeddingOptimizer(
        tf_keras.optimizers.Adagrad(tiny.LEARNING_RATE)
    )
    tables = {
        table.name: tfra.dynamic_embedding.keras.layers.BasicEmbedding(
            table.width, name=table.name, init_capacity=table.rows
        )
        for table in made
    }
    ids = tf_keras.Input([made[-1].columns[-1].stop], dtype="int64")
    numbers = tf_keras.Input([tiny.NUMBERS])
    rows = [
        tf.reduce_sum(tables[table.name](ids[:, columns]), axis=1)
        for table in made
        for columns in table.columns
    ]
    x = tf_keras.layers.Concatenate()([*rows, numbers])
    for units in tiny.LAYERS:
        x = tf_keras.layers.Dense(units, "relu")(x)
    model = tf_keras.Model([ids, numbers], tf_keras.layers.Dense(1, "sigmoid")(x))
    model.compile(optimizer, "binary_crossentropy")
    arrays = tiny.batches(scale, tiny.BATCH)
    ends = []
    for number in range(tiny.BATCHES + tiny.STEPS):
        place = number % tiny.BATCHES
        model.train_on_batch([arrays[0][place], arrays[1][place]], arrays[2][place])
        ends.append(time.perf_counter())
    seconds = statistics.median(np.diff(ends)[tiny.BATCHES - 1 :])
    status = Path("/proc/self/status").read_text()
    found = {"ms a step": 1000 * seconds}
    for what, name in (("MiB a process", "VmRSS:"), ("MiB at most", "VmHWM:")):
        found[what] = int(status.split(name)[1].split()[0]) / 1024
    print("RESULT", json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
