"""Times a step of 4096 ids in a small table and in a large one, in turn; prints milliseconds.

rows_step.py ours|keras|tf_keras|tfra|torch|..._loop SGD|Adagrad|Adam [LARGE]

The model is an embedding and a Dense layer of one unit. A step is `train_on_batch`, with _loop a
function of its own, and for PyTorch its loop. Ids follow Zipf's law of exponent 1.05 over
ten thousand ranks in both tables, so that as many rows are touched; in each batch they are others.
Under `ours` and `tfra` all rows are there before the first step; for `ours`, memory is measured
over that.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

SHORT = "--short" in sys.argv
WIDTH, IDS, EXPONENT, SMALL = 16, 4096, 1.05, 10_000
BATCHES, ROUNDS, PIECE = (3, 2, 1 << 16) if SHORT else (150, 4, 1 << 16)
SECONDS = 2.0  # a round takes at most, of a table
LEARNING_RATE = 0.01
MIB = 1 << 20

Step = Callable[[np.ndarray, np.ndarray], Any]


def batches(rows: int) -> np.ndarray:
    """Returns ids, int64 [batches, 4096]."""
    random = np.random.default_rng(0)
    frequencies = np.cumsum(np.arange(1, SMALL + 1) ** -EXPONENT)
    drawn = random.random([BATCHES, IDS]) * frequencies[-1]
    ranks = np.minimum(np.searchsorted(frequencies, drawn), SMALL - 1)
    return (ranks * (rows // SMALL) + random.integers(0, rows, [BATCHES, 1])) % rows


def by_keras(api: Any, embedding: Any, optimizer: Any) -> Step:
    """Returns `train_on_batch` of a Keras model, Keras 3's or tf_keras's."""
    model = model_of(api, embedding)
    model.compile(optimizer, "mse")
    return model.train_on_batch


def by_loop(api: Any, embedding: Any, optimizer: Any) -> Step:
    """Returns a step of a loop of one's own around a Keras model."""
    import tensorflow as tf

    model, loss_of = model_of(api, embedding), api.losses.MeanSquaredError()

    @tf.function
    def step(ids: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(ids, training=True))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return lambda ids, labels: float(step(ids, labels))


def model_of(api: Any, embedding: Any) -> Any:
    ids = api.Input([], dtype="int64")
    return api.Model(ids, api.layers.Dense(1)(embedding(ids)))


def by_torch(rows: int, optimizer: str) -> Step:
    import torch

    torch.set_num_threads(1)
    table = torch.nn.Embedding(rows, WIDTH, sparse=True)
    dense = torch.nn.Linear(WIDTH, 1)
    sparse_name = "SparseAdam" if optimizer == "Adam" else optimizer
    updates = [
        getattr(torch.optim, sparse_name)(table.parameters(), LEARNING_RATE),
        getattr(torch.optim, optimizer)(dense.parameters(), LEARNING_RATE),
    ]

    def step(ids: np.ndarray, labels: np.ndarray) -> float:
        for each in updates:
            each.zero_grad()
        rows = dense(table(torch.from_numpy(ids)))
        loss = torch.nn.functional.mse_loss(rows, torch.from_numpy(labels))
        loss.backward()
        for each in updates:
            each.step()
        return loss.item()

    return step


def by_tfra(rows: int, optimizer: str, make: Callable[..., Step]) -> Step:
    """Returns a step with TFRA's dynamic embedding, for which all ids have their rows."""
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import tensorflow as tf
    from tensorflow_recommenders_addons import dynamic_embedding as de

    layer = de.keras.layers.Embedding(
        WIDTH, key_dtype=tf.int64, value_dtype=tf.float32, init_capacity=rows, name=f"of_{rows}"
    )
    update = getattr(tf.keras.optimizers, optimizer)(LEARNING_RATE)
    step = make(tf.keras, layer, de.DynamicEmbeddingOptimizer(update))
    step(np.arange(IDS) % rows, np.zeros([IDS, 1], np.float32))
    for ids, values in pieces(rows):
        layer.params.upsert(ids, values)
    return step


def step_of(name: str, rows: int, optimizer: str) -> tuple[Step, dict[str, float]]:
    """Returns a system's step, and what its table takes."""
    system = name.removesuffix("_loop")
    make = by_keras if name == system else by_loop
    if system == "torch":
        return by_torch(rows, optimizer), {}
    if system == "tfra":
        return by_tfra(rows, optimizer, make), {}
    api = importlib.import_module("tf_keras" if system == "tf_keras" else "keras")
    update = getattr(api.optimizers, optimizer)(LEARNING_RATE)
    if system in ("keras", "tf_keras"):
        return make(api, api.layers.Embedding(rows, WIDTH), update), {}
    import strategies

    layer = strategies.DistributedEmbedding(WIDTH, rows)
    step = make(api, layer, update)
    step(np.arange(IDS) % rows, np.zeros([IDS, 1], np.float32))
    return step, filled(layer, rows)


def pieces(rows: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields all ids and their first rows, a part at a time."""
    values = np.random.default_rng(0).normal(0, 0.01, [PIECE, WIDTH]).astype(np.float32)
    for start in range(0, rows, PIECE):
        ids = np.arange(start, min(start + PIECE, rows))
        yield ids, values[: len(ids)]


def filled(layer: Any, rows: int) -> dict[str, float]:
    """Gives all ids their rows; returns the bytes that each takes."""
    import tensorflow as tf

    def taken() -> dict[str, float]:
        gc.collect()
        lines = Path("/proc/self/status").read_text().splitlines()
        (line,) = (line for line in lines if line.startswith("VmRSS:"))
        bytes_of = {"resident bytes a row": int(line.split()[1]) * 1024.0}
        # TensorFlow counts the bytes of tensors only where oneDNN is on.
        with contextlib.suppress(ValueError):
            now = tf.config.experimental.get_memory_info("CPU:0")["current"]
            bytes_of["tensors, bytes a row"] = now
        return bytes_of

    before = taken()
    for ids, values in pieces(rows):
        layer.set_rows(ids, values)
    after = taken()
    return {name: (after[name] - before[name]) / rows for name in after}


def main() -> None:
    name, optimizer, *large = [each for each in sys.argv[1:] if not each.startswith("--")]
    sizes = (SMALL, int(float(large[0])) if large else 10_000_000)
    labels = np.zeros([IDS, 1], np.float32)
    steps, ids, memory = {}, {}, {}
    for rows in sizes:
        steps[rows], memory = step_of(name, rows, optimizer)
        ids[rows] = batches(rows)
    taken: dict[int, list[float]] = {rows: [] for rows in sizes}
    for number in range(ROUNDS):
        for rows, step in steps.items():
            begun = time.perf_counter()
            for batch in ids[rows]:
                start = time.perf_counter()
                if start > begun + SECONDS:
                    break
                step(batch, labels)
                # The first round makes the graph.
                if number:
                    taken[rows].append(1000 * (time.perf_counter() - start))
    small, large_ms = (statistics.median(taken[rows]) for rows in sizes)
    found = {
        f"ms, {sizes[0]:,} rows": small,
        f"ms, {sizes[1]:,} rows": large_ms,
        "large / small": large_ms / small,
        **memory,
    }
    print(f"RESULT {json.dumps(found)}", flush=True)


if __name__ == "__main__":
    main()
