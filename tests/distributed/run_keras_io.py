"""Examples of keras.io under a strategy, beside the same ones in one process.

run_keras_io.py SETUP [--distributed] [--only NAME ...] [--references DIRECTORY]

SETUP is "mirrored" or "central" (2 replicas in one process), or "cluster" for what TF_CONFIG
says; "cluster:MODE" with parameter servers. In modes whose workers do not go in step, numbers are
not compared with those of one process: losses fall, and every row is predicted on every worker.
What one process came to is kept in the directory of references, for the next setup.
"""

import argparse
import math
import os
import pickle
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras_io import EXAMPLES, Runtime

import strategies
from strategies.variables.row_variable import RowVariable

APART = ("async", "half_async", "geo")


def main():
    options = parsed()
    strategy, mode = made(options.setup)
    failed = []
    for example in EXAMPLES:
        if options.only and example.name not in options.only:
            continue
        if options.distributed and not example.has_ids:
            continue
        start = time.monotonic()
        try:
            expected = reference(example, options.distributed, options.references)
            check(example, strategy, mode not in APART, options.distributed, expected)
        except Exception:
            # Workers whose examples fail apart would wait for each other: all end here.
            traceback.print_exc()
            failed.append(example.name)
            if mode or "cluster" in options.setup:
                break
        print(f"{example.name}: {time.monotonic() - start:.0f} s", flush=True)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
    print("passed")


def parsed():
    parser = argparse.ArgumentParser()
    parser.add_argument("setup")
    parser.add_argument("--distributed", action="store_true")
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--references", type=Path)
    return parser.parse_args()


def made(setup):
    """Returns the strategy, and the mode of its servers or ''."""
    name, _, mode = setup.partition(":")
    if name == "mirrored":
        return strategies.MirroredStrategy(num_replicas=2), ""
    if name == "central":
        return strategies.CentralStorageStrategy(num_replicas=2), ""
    return strategies.from_tf_config(**({"mode": mode} if mode else {})), mode


@dataclass
class Numbers:
    """What a run came to; the weights of each model by their paths."""

    logs: dict[str, list[float]]
    weights: list[list[tuple[str, np.ndarray]]]
    predicted: list[np.ndarray]

    @classmethod
    def of(cls, outcome: Any) -> "Numbers":
        # Of the rows of embeddings the predictions tell.
        weights = [
            [(w.path, np.array(w.numpy())) for w in model.weights if not is_of_rows(w)]
            for model in outcome.models
        ]
        return cls(outcome.logs, weights, [np.asarray(each) for each in leaves(outcome.predicted)])


def is_of_rows(weight: Any) -> bool:
    """Returns whether a weight stands for the rows of a `DistributedEmbedding`."""
    return isinstance(getattr(weight, "value", weight), RowVariable)


def reference(example, is_distributed, directory):
    """Returns the numbers of one process: those that an earlier job has kept, or its own."""
    if directory is None:
        return Numbers.of(run(example, None, is_distributed))
    path = directory / f"{example.name}-{is_distributed}"
    if not path.exists():
        numbers = Numbers.of(run(example, None, is_distributed))
        part = path.with_name(f"{path.name}.{os.getpid()}")
        part.write_bytes(pickle.dumps(numbers))
        part.replace(path)
    return pickle.loads(path.read_bytes())


def check(example, strategy, is_in_step, is_distributed, one):
    outcome = run(example, strategy, is_distributed)
    many = Numbers.of(outcome)
    for numbers in (one, many):
        for name, values in numbers.logs.items():
            assert all(math.isfinite(value) for value in values), (name, values)
        if example.falls:
            # A worker that waits for nobody may meet its last epoch when others' steps pile up.
            first, *later = numbers.logs[example.falls]
            assert (later[-1] if is_in_step else min(later)) < first, (first, later)
    shapes = [[each.shape for each in numbers.predicted] for numbers in (one, many)]
    assert shapes[0] == shapes[1], shapes
    if is_in_step:
        for model in outcome.models:
            strategies.verify_equal(strategy, model.weights)
    if is_in_step and example.tolerance is not None:
        compare(one, many, example.tolerance)


def run(example, strategy, is_distributed):
    # A worker that found the reference has made fewer layers than one that did not, and their
    # variables would have other names.
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    return example.run(Runtime(strategy, is_distributed))


def compare(one, many, tolerance):
    near = {"rtol": tolerance, "atol": tolerance}
    assert one.logs.keys() == many.logs.keys(), (one.logs.keys(), many.logs.keys())
    for name, values in one.logs.items():
        np.testing.assert_allclose(many.logs[name], values, **near, err_msg=name)
    for expected, found in zip(one.weights, many.weights, strict=True):
        for (mine, values), (theirs, others) in zip(expected, found, strict=True):
            np.testing.assert_allclose(others, values, **near, err_msg=f"{mine}, {theirs}")
    for expected, found in zip(one.predicted, many.predicted, strict=True):
        np.testing.assert_allclose(found, expected, **near, err_msg="predicted")


def leaves(predicted):
    """Returns the arrays that an example predicted."""
    return [] if predicted is None else tf.nest.flatten(predicted)


if __name__ == "__main__":
    main()
