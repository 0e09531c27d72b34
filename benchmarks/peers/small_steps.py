"""Trains a network on the workers of TF_CONFIG; prints the milliseconds of a step.

small_steps.py UNITS [--short]

They are printed by the clock, and as processor time of the first worker.
"""

from __future__ import annotations

import json
import sys
import time

import keras
import numpy as np

import strategies

UNITS, SHORT = int(sys.argv[1]), "--short" in sys.argv
BATCH, WARM_UP = 32, 10 if SHORT else 300
# About as many seconds with few units as with many.
STEPS = 50 if SHORT else 6000 if UNITS < 100 else 1500 if UNITS < 1000 else 400


class Clock(keras.callbacks.Callback):
    """Measures each step.

    Attributes:
      ends: the time at the end of each step, in seconds.
      used: the processor time of this process at the end of each step, in seconds.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []
        self.used: list[float] = []

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self.ends.append(time.perf_counter())
        self.used.append(time.process_time())


def main() -> None:
    strategy = strategies.from_tf_config()
    with strategy.scope():
        hidden = [keras.layers.Dense(UNITS, "relu") for _ in range(2)]
        model = keras.Sequential([keras.Input([UNITS]), *hidden, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(size=[(WARM_UP + STEPS) * BATCH, UNITS]).astype("float32")
    clock = Clock()
    model.fit(x, x[:, :1], batch_size=BATCH, shuffle=False, verbose=0, callbacks=[clock])
    if strategies.worker_rank(strategy) == 0:
        seconds, used = (np.diff(each[WARM_UP - 1 :]) for each in (clock.ends, clock.used))
        result = {
            "ms a step": 1000 * float(np.mean(seconds)),
            "processor ms a step": 1000 * float(np.mean(used)),
        }
        print(f"RESULT {json.dumps(result)}", flush=True)


if __name__ == "__main__":
    main()
