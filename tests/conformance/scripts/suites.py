"""TensorFlow's and Keras's own tests of distribution strategies, over stock strategies or ours.

suites.py mirrored|central_storage|one_device|multi_worker|keras stock|ours

Each worker prints one line a test: its name, "passed" or "failed", and the error. The bases are in
TensorFlow's wheel (tensorflow.python.distribute.strategy_test_lib), and are called here as
TensorFlow's own mirrored_strategy_test.py and its like call them; Keras's are whole test files.
"""

from __future__ import annotations

import importlib
import sys
import unittest
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import strategy_test_lib
from tensorflow.python.eager import context
from tensorflow.python.framework import ops

import strategies

CPUS = ["CPU:0", "CPU:1"]
KERAS_FILES = ("distribute_test", "optimizer_distribute_test")
# The stock strategy's collectives would take the numbers of ours, where these are TensorFlow's.
ONE_DEVICE_SUM = tf.distribute.ReductionToOneDevice


def two_cpus() -> None:
    """Makes two logical CPUs, and threads for what waits on them."""
    tf.config.threading.set_inter_op_parallelism_threads(16)
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)


STRATEGIES: dict[tuple[str, str], Callable[[], tf.distribute.Strategy]] = {
    ("mirrored", "stock"): lambda: tf.distribute.MirroredStrategy(CPUS),
    ("mirrored", "ours"): lambda: strategies.MirroredStrategy(CPUS),
    ("central_storage", "stock"): lambda: tf.distribute.experimental.CentralStorageStrategy(CPUS),
    ("central_storage", "ours"): lambda: strategies.CentralStorageStrategy(CPUS),
    ("one_device", "stock"): lambda: tf.distribute.MirroredStrategy(CPUS[:1]),
    ("one_device", "ours"): lambda: strategies.MirroredStrategy(CPUS[:1]),
    ("multi_worker", "stock"): lambda: tf.distribute.MultiWorkerMirroredStrategy(),
    ("multi_worker", "ours"): lambda: strategies.MultiWorkerMirroredStrategy(),
}


def input_fn(test: Any, strategy: tf.distribute.Strategy) -> Callable:
    """Returns a dataset function that checks the context that it is called with."""
    extended = strategy.extended
    workers = strategy.num_replicas_in_sync // len(extended.worker_devices)
    rank = extended._make_input_context().input_pipeline_id if workers > 1 else 0
    return test._input_fn_to_test_input_context(
        lambda: tf.data.Dataset.range(10),
        expected_num_replicas_in_sync=strategy.num_replicas_in_sync,
        expected_num_input_pipelines=workers,
        expected_input_pipeline_id=rank,
    )


def rows(strategy: tf.distribute.Strategy) -> list[list[int]]:
    """Returns what the replicas of a worker get of `input_fn`, step by step."""
    count = len(strategy.extended.worker_devices)
    return [list(range(first, first + count)) for first in range(0, 10, count)]


def iterable(test: Any, strategy: tf.distribute.Strategy) -> None:
    """Reads a dataset twice."""
    test._test_input_fn_iterable(strategy, input_fn(test, strategy), rows(strategy))


def iterator(test: Any, strategy: tf.distribute.Strategy) -> None:
    """Reads an iterator of TensorFlow 1's."""
    made = strategy.make_input_fn_iterator(input_fn(test, strategy))
    test._test_input_fn_iterator(made, strategy.extended.worker_devices, rows(strategy))


def of(name: str, **options: Any) -> Callable[[Any, tf.distribute.Strategy], None]:
    """Returns what calls a test of a base."""
    return lambda test, strategy: getattr(test, name)(strategy, **options)


# By name: how a base's test is called.
FOR_ALL = {
    "minimize_loss_eager": of("_test_minimize_loss_eager"),
    "summary_for_replica_zero_only": of("_test_summary_for_replica_zero_only"),
    "replica_id": of("_test_replica_id"),
    "call_and_merge_exceptions": of("_test_call_and_merge_exceptions"),
    "trainable_variable": of("_test_trainable_variable"),
    "global_step_update": of("_test_global_step_update"),
    "numpy_dataset": of("_test_numpy_dataset"),
    "input_fn_iterable": iterable,
    "input_fn_iterator": iterator,
}
OF_ONE_DEVICE = (
    "run",
    "all_reduce_sum",
    "all_reduce_sum_gradients",
    "all_reduce_sum_gradient_tape",
    "all_reduce_mean",
    "all_reduce_mean_gradients",
    "all_reduce_mean_gradient_tape",
)
ONE_DEVICE = {name: of(f"_test_{name}") for name in OF_ONE_DEVICE}
TWO_DEVICES = {
    **ONE_DEVICE,
    **{f"{name}_in_function": of(f"_test_{name}", run_in_function=True) for name in OF_ONE_DEVICE},
}
GRAPH = {"minimize_loss": of("_test_minimize_loss_graph", soft_placement=True, learning_rate=0.05)}


def suite_of(name: str, strategy: tf.distribute.Strategy) -> unittest.TestSuite:
    """Returns the tests of the bases that fit a strategy."""
    devices = len(strategy.extended.worker_devices)
    bases = [strategy_test_lib.DistributionTestBase]
    cases = dict(FOR_ALL)
    if devices == 2:
        bases.append(strategy_test_lib.TwoDeviceDistributionTestBase)
        cases |= TWO_DEVICES
    elif strategy.num_replicas_in_sync == 1:
        bases.append(strategy_test_lib.OneDeviceDistributionTestBase)
        cases |= ONE_DEVICE
    methods = {}
    for case, call in cases.items():
        methods[f"test_{case}"] = lambda test, call=call: call(test, strategy)
    if name != "multi_worker":
        for case, call in (GRAPH | {k: v for k, v in cases.items() if "eager" not in k}).items():
            methods[f"test_{case}_graph"] = lambda test, call=call: in_graph(call, test, strategy)
    made = type(name, tuple(bases), methods)
    return unittest.defaultTestLoader.loadTestsFromTestCase(made)


def in_graph(call: Callable, test: Any, strategy: tf.distribute.Strategy) -> None:
    """Makes a test in a graph of TensorFlow 1's, and runs it in a session."""
    with context.graph_mode(), ops.Graph().as_default():
        call(test, strategy)


def keras_suite(whose: str) -> unittest.TestSuite:
    """Returns Keras's own tests, with our class where they make a MirroredStrategy."""
    made = unittest.TestSuite()
    if whose == "ours":
        tf.distribute.MirroredStrategy = strategies.MirroredStrategy
    for file in KERAS_FILES:
        module = importlib.import_module(f"keras.src.backend.tensorflow.{file}")
        made.addTests(unittest.defaultTestLoader.loadTestsFromModule(module))
    return made


class Lines(unittest.TestResult):
    """Prints one line a test."""

    def _say(self, test: Any, outcome: str, error: Any = None) -> None:
        name = test.id().split(".")[-1].removeprefix("test_")
        reason = "" if error is None else f"{error[0].__name__}: {error[1]}".split("\n")[0]
        print(f"{outcome} {name} {reason[:200]}".strip(), flush=True)

    def addSuccess(self, test: Any) -> None:
        self._say(test, "passed")

    def addFailure(self, test: Any, error: Any) -> None:
        self._say(test, "failed", error)

    addError = addFailure

    def addSkip(self, test: Any, reason: str) -> None:
        print(f"skipped {test.id().split('.')[-1].removeprefix('test_')} {reason}", flush=True)


def main(name: str, whose: str, *chosen: str) -> None:
    """Runs a suite, or the tests of it that are named."""
    if name == "keras":
        suite = keras_suite(whose)
    else:
        if name != "multi_worker":
            two_cpus()
        suite = suite_of(name, STRATEGIES[name, whose]())
    tests = [test for test in all_tests(suite) if test.id().split(".")[-1] != "test_session"]
    for test in tests:
        if not chosen or test.id().split(".")[-1].removeprefix("test_") in chosen:
            test.run(Lines())
    print("done", flush=True)


def all_tests(suite: unittest.TestSuite) -> list[Any]:
    """Returns the tests of a suite, of whatever depth."""
    if not isinstance(suite, unittest.TestSuite):
        return [suite]
    return [test for part in suite for test in all_tests(part)]


if __name__ == "__main__":
    main(*sys.argv[1:])
