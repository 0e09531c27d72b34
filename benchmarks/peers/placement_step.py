"""Times steps of tables that are sharded and of such that each worker has a copy of, in turn.

    placement_step.py ROWS BATCH TABLES [--short]

Each table has so many rows, of 16 numbers; an example has an id of each. All are trained with
Adagrad, in batches of so many examples of all workers together.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import strategies

rows, batch, tables = (int(each) for each in sys.argv[1:4])
STEPS, ROUNDS = (3, 2) if "--short" in sys.argv else (40, 5)
strategy = strategies.from_tf_config()
ids = np.random.default_rng(0).integers(0, rows, [STEPS * batch, tables])
dataset = tf.data.Dataset.from_tensor_slices((ids, np.zeros([len(ids), 1], np.float32)))
dataset = dataset.batch(batch)


def model_of(placement: str) -> keras.Model:
    features = {
        str(number): strategies.FeatureConfig(
            strategies.TableConfig(f"table{number}", 16, rows, placement=placement)
        )
        for number in range(tables)
    }
    with strategy.scope():
        inputs = keras.Input([tables], dtype="int64")
        layer = strategies.DistributedEmbedding(features=features)
        found = layer({str(number): inputs[:, number : number + 1] for number in range(tables)})
        joined = keras.layers.Concatenate(-1)(list(found.values()))
        model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(joined)))
        model.compile(keras.optimizers.Adagrad(0.1), "mse")
    return model


models = {placement: model_of(placement) for placement in ("sharded", "replicated")}
taken: dict[str, list[float]] = {placement: [] for placement in models}
for number in range(ROUNDS + 1):
    for placement, model in models.items():
        start = time.perf_counter()
        model.fit(dataset, verbose=0)
        # The first round makes the graph, and the rows.
        if number:
            taken[placement].append(1000 * (time.perf_counter() - start) / STEPS)
found = {f"{placement}, ms a step": statistics.median(each) for placement, each in taken.items()}
if strategy.cluster_resolver.task_id == 0:
    print(f"RESULT {json.dumps(found)}", flush=True)
