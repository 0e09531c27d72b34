"""Trains the network of mirrored.py, and writes what a step of the first worker consisted of.

step_trace.py alone|auto|horovod SPANS.json

It profiles steps of `fit`, prints the median milliseconds of a step's parts, and writes the parts
of the step of median length. Profiling makes the steps longer.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

import keras
import tensorflow as tf
from mlp import data, make_model
from step_spans import events_of, milliseconds, steps_of

import strategies

WARM_UP, STEPS = 60, 40


class Profile(keras.callbacks.Callback):
    """Profiles steps of `fit` into a directory."""

    def __init__(self, directory: str):
        super().__init__()
        self.directory = directory

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        if batch == WARM_UP:
            tf.profiler.experimental.start(self.directory)
        elif batch == WARM_UP + STEPS:
            tf.profiler.experimental.stop()


def main() -> None:
    communication, target = sys.argv[1:]
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    if communication == "alone":
        del os.environ["TF_CONFIG"]
        strategy = strategies.MirroredStrategy(["/device:CPU:0"])
    else:
        strategy = strategies.MultiWorkerMirroredStrategy(communication=communication)
    with strategy.scope():
        model = make_model()
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    dataset = strategy.distribute_datasets_from_function(lambda _: data())
    with tempfile.TemporaryDirectory() as directory:
        # Every worker is profiled, so that profiling slows all of them alike.
        model.fit(
            dataset, steps_per_epoch=WARM_UP + STEPS + 1, callbacks=[Profile(directory)], verbose=0
        )
        steps = steps_of(events_of(directory))
    if task["index"] == 0:
        steps.sort(key=lambda step: step[-1].end)
        Path(target).write_text(json.dumps(steps[len(steps) // 2]))
        parts = [milliseconds(step) for step in steps]
        medians = {part: statistics.median(each[part] for each in parts) for part in parts[0]}
        print(f"RESULT {json.dumps(medians)}", flush=True)


if __name__ == "__main__":
    main()
