"""Trains small models of several kinds of layers, one after the other; prints what a step takes.

The memory is what the process had at most, in all of them together.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from turns import memory

SHORT = "--short" in sys.argv
STEPS, WARM_UP = (3, 1) if SHORT else (60, 15)
layers = keras.layers
Made = tuple[keras.Model, np.ndarray]
random = np.random.default_rng(0)


def dense() -> Made:
    """The network of mirrored.py."""
    hidden = [layers.Dense(1024, "relu"), layers.Dense(1024, "relu")]
    model = keras.Sequential([keras.Input([784]), *hidden, layers.Dense(10)])
    return model, random.standard_normal([128, 784], dtype=np.float32)


def convolutions() -> Made:
    blocks = [
        layer
        for filters in (32, 64)
        for layer in (
            layers.Conv2D(filters, 3, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPooling2D(),
        )
    ]
    head = [layers.GlobalAveragePooling2D(), layers.Dense(10)]
    model = keras.Sequential([keras.Input([32, 32, 3]), *blocks, *head])
    return model, random.standard_normal([64, 32, 32, 3], dtype=np.float32)


def depthwise() -> Made:
    network = keras.applications.MobileNetV2([64, 64, 3], alpha=0.35, weights=None, classes=10)
    return network, random.standard_normal([16, 64, 64, 3], dtype=np.float32)


def recurrent() -> Made:
    model = keras.Sequential([keras.Input([40, 32]), layers.LSTM(64), layers.Dense(10)])
    return model, random.standard_normal([64, 40, 32], dtype=np.float32)


def attention() -> Made:
    inputs = keras.Input([64, 128])
    hidden = layers.LayerNormalization()(inputs + layers.MultiHeadAttention(4, 32)(inputs, inputs))
    hidden = layers.Dense(128)(layers.Dense(256, "gelu")(hidden))
    pooled = layers.GlobalAveragePooling1D()(hidden)
    return keras.Model(inputs, layers.Dense(10)(pooled)), random.standard_normal(
        [16, 64, 128], dtype=np.float32
    )


def embedding() -> Made:
    hidden = [layers.Flatten(), layers.Dense(400, "relu"), layers.Dense(400, "relu")]
    table = layers.Embedding(10_000, 16)
    model = keras.Sequential([keras.Input([26], dtype="int64"), table, *hidden, layers.Dense(10)])
    return model, random.integers(0, 10_000, [256, 26])


def milliseconds(make: Callable[[], Made]) -> float:
    """Returns the median time of a training step."""
    keras.utils.set_random_seed(1)
    model, x = make()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss)
    y = np.arange(len(x)) % 10
    taken = []
    for _ in range(WARM_UP + STEPS):
        start = time.perf_counter()
        model.train_on_batch(x, y)
        taken.append(time.perf_counter() - start)
    return 1000 * statistics.median(taken[WARM_UP:])


def main() -> None:
    kinds = (dense, convolutions, depthwise, recurrent, attention, embedding)
    found = {kind.__name__: milliseconds(kind) for kind in kinds}
    print(f"RESULT {json.dumps({**found, 'MiB': memory('VmHWM')})}", flush=True)


if __name__ == "__main__":
    main()
