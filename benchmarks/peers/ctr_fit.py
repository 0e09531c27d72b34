"""Trains the click model by `fit`, under the parameter servers of TF_CONFIG or in one process.

ctr_fit.py sgd|adam [mode] [--distributed] [--rows-on-servers] [--alone] [--batches=N]
           [--steps-per-execution=N]

With --distributed the rows are those of a `DistributedEmbedding`; with --rows-on-servers, workers
in mode "geo" do not train them themselves. With --alone each worker trains a
model of its own. With --batches one process takes N batches together in each step. With
--steps-per-execution each call of TensorFlow from Python takes N steps.
"""

from __future__ import annotations

import json
import os
import sys
import time

import keras
from ctr import data, make_model, optimizer
from ctr_data import ROWS, STEPS, WARM_UP, check_loss, collect_garbage

import strategies


class Deadline(keras.callbacks.Callback):
    """Measures the seconds of an epoch."""

    seconds = 0.0

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        self._start = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        self.seconds = time.perf_counter() - self._start


def distributed(rows: int, width: int) -> strategies.DistributedEmbedding:
    return strategies.DistributedEmbedding(width, input_dim=rows)


def number_in(option: str) -> int:
    """Returns the number that follows an option; 1 without the option."""
    numbers = [int(each.removeprefix(option)) for each in sys.argv if each.startswith(option)]
    return numbers[0] if numbers else 1


def main() -> None:
    config = json.loads(os.environ.get("TF_CONFIG", '{"cluster": {"worker": [0]}}'))
    if "--alone" in sys.argv:
        del os.environ["TF_CONFIG"]
    name, *mode = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    batches, steps = (number_in(each) for each in ("--batches=", "--steps-per-execution="))
    options = {"mode": mode[0]} if mode else {}
    if "--rows-on-servers" in sys.argv:
        options["geo_rows"] = "servers"
    strategy = strategies.from_tf_config(**options)
    with strategy.scope():
        model = make_model(distributed if "--distributed" in sys.argv else keras.layers.Embedding)
        model.compile(optimizer(name), "binary_crossentropy", steps_per_execution=steps)
    dataset = strategy.distribute_datasets_from_function(
        lambda _: data().rebatch(ROWS * batches).prefetch(4) if batches > 1 else data()
    )
    model.fit(dataset, steps_per_epoch=WARM_UP, verbose=0)
    collect_garbage()
    clock = Deadline()
    trained = model.fit(dataset, steps_per_epoch=STEPS, callbacks=[clock], verbose=0)
    check_loss(trained.history["loss"][-1])
    if config.get("task", {}).get("index", 0) == 0:
        # Workers that do not wait for each other are taken to be as fast as the first.
        samples = STEPS * ROWS * batches * len(config["cluster"]["worker"]) / clock.seconds
        print(f"RESULT {json.dumps({'samples/s': samples})}", flush=True)


if __name__ == "__main__":
    main()
