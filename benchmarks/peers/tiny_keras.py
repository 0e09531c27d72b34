"""Trains the synthetic model "Tiny" by `fit`; prints milliseconds, memory and more.

tiny_keras.py ours|keras|tf_keras|stock|horovod SCALE [async|half_async|sync]

Under `ours` all rows are there before the first step.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tiny

import strategies

MIB = 1 << 20
PIECE = 1 << 18


def own_embeddings(ids: Any, made: list[tiny.Table]) -> list[Any]:
    """Returns what the features give, looked up in tables of this package."""
    configs = {
        table.name: strategies.TableConfig(table.name, table.width, table.rows) for table in made
    }
    features, inputs = {}, {}
    for table in made:
        for number, columns in enumerate(table.columns):
            name = f"{table.name}_{number}"
            features[name] = strategies.FeatureConfig(configs[table.name], "sum")
            inputs[name] = ids[:, columns]
    layer = strategies.DistributedEmbedding(features=features, name="tables")
    return list(layer(inputs).values())


def stock_embeddings(api: Any) -> Callable:
    """Returns what looks up in tables of Keras 3 or tf_keras."""
    total = api.ops.sum if hasattr(api, "ops") else tf.reduce_sum

    def embeddings(ids: Any, made: list[tiny.Table]) -> list[Any]:
        outputs = []
        for table in made:
            layer = api.layers.Embedding(table.rows, table.width)
            for columns in table.columns:
                rows = layer(ids[:, columns])
                is_one = columns.stop - columns.start == 1
                outputs.append(api.layers.Flatten()(rows) if is_one else total(rows, axis=1))
        return outputs

    return embeddings


def model_of(api: Any, embeddings: Callable, scale: int) -> Any:
    """Returns the model."""
    made = tiny.tables(scale)
    ids = api.Input([made[-1].columns[-1].stop], dtype="int64")
    numbers = api.Input([tiny.NUMBERS])
    x = api.layers.Concatenate()([*embeddings(ids, made), numbers])
    for units in tiny.LAYERS:
        x = api.layers.Dense(units, "relu")(x)
    return api.Model([ids, numbers], api.layers.Dense(1, "sigmoid")(x))


def fill(layer: Any, scale: int) -> None:
    """Gives every id of every table its row; each worker keeps its own."""
    random = np.random.default_rng(0)
    for table in tiny.tables(scale):
        rows = random.normal(0, 0.01, [PIECE, table.width]).astype(np.float32)
        for start in range(0, table.rows, PIECE):
            ids = np.arange(start, min(start + PIECE, table.rows))
            layer.set_rows(ids, rows[: len(ids)], table.name)


def data(scale: int, workers: int) -> tf.data.Dataset:
    """Returns endless batches of one worker: ((ids, numbers), labels)."""
    ids, numbers, labels = tiny.batches(scale, tiny.BATCH // workers)

    def batches() -> Iterator:
        # Not `from_tensor_slices`, which has copies of it all in its graph.
        for number in itertools.count():
            place = number % tiny.BATCHES
            yield (ids[place], numbers[place]), labels[place]

    signature = tf.nest.map_structure(_spec, ((ids, numbers), labels))
    return tf.data.Dataset.from_generator(batches, output_signature=signature).prefetch(4)


def _spec(array: np.ndarray) -> tf.TensorSpec:
    return tf.TensorSpec(array.shape[1:], array.dtype)


def clock(api: Any) -> Any:
    """Returns a callback that notes when steps end."""

    class Deadline(api.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.ends: list[float] = []

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            float(logs["loss"])
            self.ends.append(time.perf_counter())

    return Deadline()


def status(name: str) -> float:
    """Returns a number of this process's memory, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{name}:"))
    return int(line.split()[1]) / 1024


def of_tables(statistics: dict[str, dict[str, float]]) -> dict[str, float]:
    """Returns what a layer's statistics say of all tables together."""
    total: dict[str, float] = {}
    for each in statistics.values():
        for what, value in each.items():
            total[what] = total.get(what, 0) + value
    sent = total["bytes_ids"] + total["bytes_rows"] + total["bytes_gradients"]
    return {
        "MiB sent a step": sent / (tiny.WARM_UP + tiny.STEPS) / MIB,
        "unique ratio": total["unique"] / total["lookups"],
        "millions of rows": total["rows"] / 1e6,
        "imbalance": max(each["imbalance"] * (each["rows"] > 1e4) for each in statistics.values()),
    }


def prepared(name: str, mode: list[str], workers: int) -> tuple[Any, Any, Any, Callable]:
    """Returns Keras, an optimizer's class, a strategy and what looks up."""
    if name in ("ours", "keras"):
        import keras

        if name == "keras":
            return keras, keras.optimizers.Adagrad, None, stock_embeddings(keras)
        options = {"mode": mode[0]} if mode else {}
        strategy = strategies.from_tf_config(**options)
        return keras, keras.optimizers.Adagrad, strategy, own_embeddings
    import tf_keras

    optimizer, strategy = tf_keras.optimizers.Adagrad, None
    if name == "stock":
        communication = tf.distribute.experimental.CommunicationImplementation.RING
        strategy = tf.distribute.MultiWorkerMirroredStrategy(
            communication_options=tf.distribute.experimental.CommunicationOptions(
                implementation=communication
            )
        )
    if name == "horovod":
        strategies.MultiWorkerMirroredStrategy(communication="horovod")  # starts it
        import horovod.tensorflow.keras as hvd

        def distributed(rate: float) -> Any:
            return hvd.DistributedOptimizer(tf_keras.optimizers.Adagrad(rate))

        optimizer = distributed
        tf_keras.utils.set_random_seed(0)  # the first weights of all workers are the same
    return tf_keras, optimizer, strategy, stock_embeddings(tf_keras)


def main() -> None:
    name, scale, *mode = [each for each in sys.argv[1:] if not each.startswith("--")]
    config = json.loads(os.environ.get("TF_CONFIG", '{"cluster": {"worker": [0]}}'))
    workers = len(config["cluster"]["worker"])
    api, optimizer, strategy, embeddings = prepared(name, mode, workers)
    batches = data(int(scale), workers)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = model_of(api, embeddings, int(scale))
        model.compile(optimizer(tiny.LEARNING_RATE), "binary_crossentropy")
        model.optimizer.build(model.trainable_variables)
    if strategy is not None:
        batches = strategy.distribute_datasets_from_function(lambda _: data(int(scale), workers))
    filling = time.perf_counter()
    if name == "ours":
        fill(model.get_layer("tables"), int(scale))
    filling = time.perf_counter() - filling
    times = clock(api)
    model.fit(batches, steps_per_epoch=tiny.WARM_UP + tiny.STEPS, callbacks=[times], verbose=0)
    seconds = statistics.median(np.diff(times.ends)[tiny.WARM_UP - 1 :])
    found = {
        "ms a step": 1000 * seconds,
        "MiB a process": status("VmRSS"),
        "MiB at most": status("VmHWM"),
    }
    if name == "ours":
        found["s to fill"] = filling
        found |= of_tables(model.get_layer("tables").statistics())
    if config.get("task", {}).get("index", 0) == 0:
        print(f"RESULT {json.dumps(found)}", flush=True)


if __name__ == "__main__":
    main()
