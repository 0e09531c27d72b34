"""Runs the embedding, and prints what `plan_capacity` says of it beside what is measured.

    $ .venv/bin/python benchmarks/capacity.py
    $ .venv/bin/python benchmarks/capacity.py --rows 20e6 --optimizers sgd --workers 1

Each case runs in processes of its own. They train until the table has its rows, save them, and
train on ids drawn by Zipf's law. Memory is the larger resident set (VmRSS and VmHWM of
/proc/self/status) of the workers, over what it was after the first steps; bytes are those that
`layer.statistics()` counted, of one worker in a step.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
from pathlib import Path
from typing import Any

import turns

WIDTH, BATCH, HOTNESS, ZIPF = 16, 4096, 4, 1.05
CHUNK, STEPS = 20_000, 20
MIB = 1 << 20
OPTIMIZERS = {"sgd": "SGD", "adagrad": "Adagrad", "adam": "Adam"}


def main() -> None:
    """Measures the cases, each in processes of its own, or is a worker of one of them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", nargs="+", type=float, default=[1e6, 5e6])
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=list(OPTIMIZERS))
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        rows, optimizer, directory = options.worker
        print(f"RESULT {json.dumps(measured(int(rows), optimizer, directory))}", flush=True)
        return
    print(header())
    for workers in options.workers:
        for rows in options.rows:
            for optimizer in options.optimizers:
                found = run(workers, int(rows), optimizer)
                print(line(workers, int(rows), optimizer, found), flush=True)


def run(workers: int, rows: int, optimizer: str) -> dict[str, float]:
    """Returns the larger numbers of the workers."""
    name = f"{workers} x {rows} {optimizer}"
    with tempfile.TemporaryDirectory() as directory:
        program = __file__, "--worker", rows, optimizer, directory
        return turns.largest(turns.on_workers(name, workers, *program), workers)


def header() -> str:
    """Returns the first lines of the table: Markdown."""
    names = ["workers", "rows", "optimizer", "state, MiB", "bytes a row", "saving adds, MiB"]
    names += ["unique ids", "bytes of ids", "bytes of rows", "bytes of gradients", "program, MiB"]
    return "\n".join(f"| {' | '.join(row)} |" for row in (names, ["---"] * len(names)))


def line(workers: int, rows: int, optimizer: str, found: dict[str, float]) -> str:
    """Returns one line of the table: what was planned, and what was measured."""
    from strategies import plan_capacity

    table = {"rows": rows, "width": WIDTH, "hotness": HOTNESS, "zipf": ZIPF}
    plan = plan_capacity({"t": table}, batch=BATCH, workers=workers, optimizer=optimizer)
    memory, traffic = plan.memory, plan.traffic["t"]
    state = memory.state
    planned = {
        "state": state / MIB,
        "row": state / (rows / workers),
        "saving": memory.saving / MIB,
        "unique": traffic.unique,
        "ids": traffic.ids,
        "rows": traffic.rows,
        "gradients": traffic.gradients,
        "program": memory.program / MIB,
    }
    cells = [f"{planned[name]:,.0f} / {found[name]:,.0f}" for name in planned]
    return f"| {workers} | {rows / 1e6:g} M | {optimizer} | {' | '.join(cells)} |"


def measured(rows: int, optimizer: str, directory: str) -> dict[str, float]:
    """Fills a table, saves it and trains on it; returns this worker's numbers."""
    import keras
    import numpy as np
    import tensorflow as tf

    import strategies
    from strategies.collectives.workers import collectives_of

    strategy = strategies.from_tf_config()
    everyone = collectives_of(strategy)
    with strategy.scope():
        layer = strategies.DistributedEmbedding(WIDTH, name="t")
        layer.build()
        updates = getattr(keras.optimizers, OPTIMIZERS[optimizer])(0.01)
        updates.build(layer.trainable_variables)

    def replica(ids: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(layer(ids, training=True) ** 2)
        gradients = tape.gradient(loss, layer.trainable_variables)
        updates.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def step(ids: Any) -> None:
        strategy.run(replica, args=(ids,))

    def ids_of(ranks: Any) -> Any:
        """Returns the ids of ranks from 0: all over the int64, so that no order helps."""
        return tf.constant((ranks.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64))

    first = CHUNK * everyone.size  # so that what a step needs beside the rows is there before
    for _ in range(3):
        step(ids_of(np.arange(first)[everyone.rank :: everyone.size]))
    program = turns.memory("VmRSS")
    for start in range(first, rows, CHUNK * everyone.size):
        mine = start + everyone.rank * CHUNK
        step(ids_of(np.arange(mine, min(mine + CHUNK, rows))))
    gc.collect()
    filled = turns.memory("VmRSS")
    if layer.statistics()["t"]["rows"] != rows:
        raise RuntimeError(f"{layer.statistics()} for {rows} rows")
    Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
    layer.save_rows(directory)
    saving = turns.memory("VmHWM") - filled
    before, unique = layer.statistics()["t"], 0.0
    frequencies = np.arange(1, rows + 1) ** -ZIPF
    sums = np.cumsum(frequencies / frequencies.sum())
    random = np.random.default_rng(everyone.rank)
    for _ in range(STEPS):
        drawn = np.searchsorted(sums, random.random(BATCH * HOTNESS))
        unique += np.unique(drawn).size / STEPS
        step(ids_of(np.minimum(drawn, rows - 1)))
    after = layer.statistics()["t"]
    bytes_sent = {
        name: (after[f"bytes_{name}"] - before[f"bytes_{name}"]) / STEPS / everyone.size
        for name in ("ids", "rows", "gradients")
    }
    row = (filled - program) * MIB / ((rows - first) / everyone.size)
    state = row * rows / everyone.size / MIB
    return {
        "state": state, "row": row, "saving": saving, "unique": unique, **bytes_sent,
        "program": program,
    }  # fmt: skip


if __name__ == "__main__":
    main()
