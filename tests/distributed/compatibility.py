"""Runs every cell of one column of a compatibility table: one strategy, one Keras.

compatibility.py STRATEGY --keras keras|tf_keras --records FILE [--table models|rows]
                 [--options JSON] [--cpus N] [--only CELL ...] [--skip CELL ...]

STRATEGY is what makes it, by name: `strategies.MirroredStrategy` with the options
`{"num_replicas": 2}`. `tf.distribute.get_strategy` is none, for numbers to compare with.

All workers append a line of JSON to FILE when they begin a cell and when they end it. A worker
ends at the first cell that fails, for the others may be in the middle of it; `--skip` is how
tools/compatibility.py goes on behind it. That program compares the numbers as well.
"""

import argparse
import importlib
import json
import operator
import os
import sys
import traceback

import tensorflow as tf
from cells import CELLS, Lab, Missing

ALIASES = {"tf": "tensorflow"}


def main():
    options = parsed()
    if options.cpus > 1:
        (cpu,) = tf.config.list_physical_devices("CPU")
        logical = [tf.config.LogicalDeviceConfiguration()] * options.cpus
        tf.config.set_logical_device_configuration(cpu, logical)
    prepare_gpus(options.options.get("num_replicas", 1))
    write({"cell": None, "state": "started"}, options.records)
    module, _, name = options.strategy.partition(".")
    make = operator.attrgetter(name)(importlib.import_module(ALIASES.get(module, module)))
    lab = Lab(importlib.import_module(options.keras), make(**options.options))
    for cell in CELLS[options.table]:
        if cell.name in options.skip or options.only and cell.name not in options.only:
            continue
        about = {"cell": cell.name, "tolerance": cell.tolerance}
        write({**about, "state": "started"}, options.records)
        try:
            about |= {"state": "ok", "facts": cell.run(lab)}
        except Missing as reason:
            about |= {"state": "missing", "error": str(reason)}
        except Exception as error:
            traceback.print_exc()
            error = f"{type(error).__name__}: {error}"
            write({**about, "state": "fails", "error": error}, options.records)
            sys.exit(1)
        write(about, options.records)
    print("passed")


def prepare_gpus(replicas):
    """Divides the GPU, if there is one for two replicas, and has it compute float32 as CPUs do."""
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.experimental.enable_tensor_float_32_execution(False)
    if len(gpus) == 1 and replicas == 2:
        half = tf.config.LogicalDeviceConfiguration(memory_limit=1024)
        tf.config.set_logical_device_configuration(gpus[0], [half, half])


def parsed():
    parser = argparse.ArgumentParser()
    parser.add_argument("strategy")
    parser.add_argument("--keras", required=True)
    parser.add_argument("--records", required=True)
    parser.add_argument("--table", default="models", choices=CELLS)
    parser.add_argument("--options", type=json.loads, default={})
    parser.add_argument("--cpus", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--skip", nargs="*", default=[])
    return parser.parse_args()


def write(record, path):
    """Adds a line to a file that other workers write to as well."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(file, json.dumps(record, default=float).encode() + b"\n")
    finally:
        os.close(file)


main()
