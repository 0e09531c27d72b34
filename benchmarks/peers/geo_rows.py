"""Trains a small click model in a mode of the parameter servers; prints its AUC and its costs.

geo_rows.py sgd|adam MODE [geo_rows=servers] [geo_row_cache=N] ...

    $ tf-config run --threads-per-worker 1 --workers 2 --ps 1 benchmarks/peers/geo_rows.py adam geo

Each worker has clicks of its own, whose ids follow a power law: each of eight features has 20,000
ids with a taste of their own. The first worker evaluates what all have trained, on other clicks.
Costs are processor milliseconds for each step of a worker, in the first worker and in the servers,
which depend little on what else the machine does; steps per second do.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import strategies

IDS, FEATURES, ROWS = 20_000, 8, 128
STEPS, EPOCHS = 400, 2
EXPONENT = 1.1  # of the power law that ids follow


def clicks(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns ids, [count, features], and labels."""
    taste = np.random.default_rng(7).normal(size=[FEATURES, IDS])
    random, power = np.random.default_rng(seed), 1 - EXPONENT
    uniform = random.random([count, FEATURES])
    ids = ((1 - uniform * (1 - (IDS + 1.0) ** power)) ** (1 / power)).astype(np.int64) % IDS
    logits = 0.7 * taste[np.arange(FEATURES), ids].sum(1)
    labels = random.random(count) < 1 / (1 + np.exp(-logits))
    return ids + np.arange(FEATURES) * IDS, labels.astype(np.float32)[:, np.newaxis]


def make_model(name: str) -> keras.Model:
    inputs = keras.Input([FEATURES], dtype="int64")
    rows = strategies.DistributedEmbedding(8)(inputs)
    hidden = keras.layers.Dense(32, "relu")(keras.layers.Flatten()(rows))
    model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
    optimizer = {"sgd": keras.optimizers.SGD(0.5), "adam": keras.optimizers.Adam(0.002)}[name]
    model.compile(optimizer, "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
    return model


def server_seconds() -> float:
    """Returns the processor seconds of the servers that the launcher of this worker started."""
    ticks = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            command = (folder / "cmdline").read_text()
        except OSError:  # it has ended
            continue
        if int(fields[1]) == os.getppid() and "strategies.serve" in command:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    name, mode, *rest = sys.argv[1:]
    options = dict(each.split("=") for each in rest)
    settings = {key: int(each) if each.isdigit() else each for key, each in options.items()}
    strategy = strategies.from_tf_config(mode=mode, **settings)
    rank, workers = strategies.worker_rank(strategy), strategy.extended.workers.size
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = make_model(name)
    data = tf.data.Dataset.from_tensor_slices(clicks(100 + rank, STEPS * ROWS)).batch(ROWS)
    dataset = strategy.distribute_datasets_from_function(lambda _: data.repeat())
    model.fit(dataset, steps_per_epoch=20, verbose=0)
    start, own, servers = time.perf_counter(), time.process_time(), server_seconds()
    model.fit(dataset, steps_per_epoch=STEPS, epochs=EPOCHS, verbose=0)
    seconds = time.perf_counter() - start
    own, servers = time.process_time() - own, server_seconds() - servers
    strategies.barrier(strategy)
    if rank == 0:
        auc = model.evaluate(*clicks(5, 20_000), batch_size=1000, verbose=0)[1]
        steps = STEPS * EPOCHS
        result = {
            "AUC": auc,
            "steps/s": steps / seconds,
            "worker ms": 1000 * own / steps,
            "servers ms": 1000 * servers / steps / workers,
        }
        print(f"RESULT {json.dumps(result)}", flush=True)
    strategies.barrier(strategy)


if __name__ == "__main__":
    main()
