"""Examples of keras.io under a strategy, beside the same ones in one process.

run_keras_io.py SETUP [--distributed] [--only NAME ...]

SETUP is "mirrored" or "central" (2 replicas in one process), or "cluster" for what TF_CONFIG
says; "cluster:MODE" with parameter servers. In modes whose workers do not go in step, numbers are
not compared with those of one process: losses fall, and every row is predicted on every worker.
"""

import argparse
import math
import sys
import time
import traceback

import keras
import numpy as np
import tensorflow as tf
from keras_io import EXAMPLES, Runtime

import strategies

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
            check(example, strategy, mode not in APART, options.distributed)
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
    return parser.parse_args()


def made(setup):
    """Returns the strategy, and the mode of its servers or ''."""
    name, _, mode = setup.partition(":")
    if name == "mirrored":
        return strategies.MirroredStrategy(num_replicas=2), ""
    if name == "central":
        return strategies.CentralStorageStrategy(num_replicas=2), ""
    return strategies.from_tf_config(**({"mode": mode} if mode else {})), mode


def check(example, strategy, is_in_step, is_distributed):
    one = run(example, None, is_distributed)
    many = run(example, strategy, is_distributed)
    for outcome in (one, many):
        for name, values in outcome.logs.items():
            assert all(math.isfinite(value) for value in values), (name, values)
        if example.falls:
            losses = outcome.logs[example.falls]
            assert losses[-1] < losses[0], losses
    shapes = [[each.shape for each in leaves(run.predicted)] for run in (one, many)]
    assert shapes[0] == shapes[1], shapes
    if is_in_step:
        for model in many.models:
            strategies.verify_equal(strategy, model.weights)
    if is_in_step and example.tolerance is not None:
        compare(one, many, example.tolerance)


def run(example, strategy, is_distributed):
    keras.utils.set_random_seed(0)
    return example.run(Runtime(strategy, is_distributed))


def compare(one, many, tolerance):
    near = {"rtol": tolerance, "atol": tolerance}
    assert one.logs.keys() == many.logs.keys(), (one.logs.keys(), many.logs.keys())
    for name, values in one.logs.items():
        np.testing.assert_allclose(many.logs[name], values, **near, err_msg=name)
    for expected, found in zip(one.models, many.models, strict=True):
        for mine, theirs in zip(expected.weights, found.weights, strict=True):
            path = f"{mine.path}, {theirs.path}"
            np.testing.assert_allclose(theirs.numpy(), mine.numpy(), **near, err_msg=path)
    for expected, found in zip(leaves(one.predicted), leaves(many.predicted), strict=True):
        np.testing.assert_allclose(found, expected, **near, err_msg="predicted")


def leaves(predicted):
    """Returns the arrays that an example predicted."""
    return [] if predicted is None else tf.nest.flatten(predicted)


if __name__ == "__main__":
    main()
