"""Trains a small network on the workers of TF_CONFIG; prints the milliseconds of a step.

small_steps.py [PORT]

With a port, the first worker fetches the page of metrics from there once a second.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import urllib.request

import keras
import numpy as np

import strategies

SHORT = "--short" in sys.argv
BATCH, STEPS, WARM_UP = 32, 50 if SHORT else 3000, 10 if SHORT else 300


class Clock(keras.callbacks.Callback):
    """Measures an epoch."""

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        self.seconds = -time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        self.seconds += time.perf_counter()


def fetch(port: str, ended: threading.Event, pages: list[bytes]) -> None:
    while not ended.wait(1.0):
        with urllib.request.urlopen(f"http://localhost:{port}/metrics") as page:
            pages.append(page.read())


def main() -> None:
    ports = [each for each in sys.argv[1:] if not each.startswith("--")]
    strategy = strategies.from_tf_config()
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input([32]), keras.layers.Dense(32, "relu"), keras.layers.Dense(1)]
        )
        model.compile("sgd", "mse")
    steps = STEPS + WARM_UP
    x = np.random.default_rng(0).normal(size=[steps * BATCH, 32]).astype("float32")
    options = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    clock, ended, pages = Clock(), threading.Event(), []
    model.fit(x[: WARM_UP * BATCH], x[: WARM_UP * BATCH, :1], **options)
    is_first = strategies.worker_rank(strategy) == 0
    for port in ports if is_first else ():
        threading.Thread(target=fetch, args=(port, ended, pages), daemon=True).start()
    model.fit(x[WARM_UP * BATCH :], x[WARM_UP * BATCH :, :1], callbacks=[clock], **options)
    ended.set()
    if ports and is_first and not SHORT and b"keras_strategies_steps_total" not in pages[-1]:
        raise RuntimeError(f"The page must have the number of steps. Received: {pages[-1]!r}.")
    if is_first:
        print(f"RESULT {json.dumps({'ms a step': 1000 * clock.seconds / STEPS})}", flush=True)


if __name__ == "__main__":
    main()
