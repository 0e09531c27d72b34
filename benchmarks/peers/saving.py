"""Trains and saves every 50 steps; prints the gaps between steps in milliseconds.

saving.py background|foreground|none DIRECTORY [--short]
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tiny_keras import clock

import strategies

MODE, DIRECTORY = sys.argv[1:3]
SHORT = "--short" in sys.argv
ROWS, WIDTH, BATCH = (30_000 if SHORT else 3_000_000), 16, 1024
STEPS, EVERY, WARM_UP = (30, 10, 5) if SHORT else (260, 50, 20)
PIECE = 1 << 18


def main() -> None:
    strategy = strategies.from_tf_config()
    rank = strategies.worker_rank(strategy)
    with strategy.scope():
        ids = keras.Input([1], dtype="int64")
        rows = strategies.DistributedEmbedding(WIDTH, input_dim=ROWS, name="rows")(ids)
        hidden = keras.layers.Dense(1024, "relu")(keras.layers.Flatten()(rows))
        hidden = keras.layers.Dense(1024, "relu")(hidden)
        hidden = keras.layers.Dense(1024, "relu")(hidden)
        model = keras.Model(ids, keras.layers.Dense(1)(hidden))
        model.compile("adam", "mse")
        model.optimizer.build(model.trainable_variables)
    values = np.random.default_rng(0).normal(0, 0.01, [PIECE, WIDTH]).astype(np.float32)
    for start in range(0, ROWS, PIECE):
        some = np.arange(start, min(start + PIECE, ROWS))
        model.get_layer("rows").set_rows(some, values[: len(some)])
    random = np.random.default_rng(1)
    examples = random.integers(0, ROWS, [64 * BATCH, 1]), np.ones([64 * BATCH, 1], np.float32)
    data = tf.data.Dataset.from_tensor_slices(examples).batch(BATCH).repeat()
    times = clock(keras)
    callbacks: list[Any] = [times]
    directory = Path(DIRECTORY) / MODE
    if MODE != "none":
        callbacks.append(
            strategies.callbacks.Checkpoint(
                directory, every_steps=EVERY, background=MODE == "background"
            )
        )
    model.fit(data, steps_per_epoch=STEPS, callbacks=callbacks, verbose=0)
    gaps = 1000 * np.diff(times.ends[WARM_UP:])
    strategies.barrier(strategy)
    if rank == 0:
        shutil.rmtree(directory, ignore_errors=True)
        found = {
            "largest gap, ms": max(gaps),
            "median step, ms": statistics.median(gaps),
            "mean step, ms": statistics.mean(gaps),
        }
        print(f"RESULT {json.dumps(found)}", flush=True)


main()
