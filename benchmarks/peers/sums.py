"""Sums tensors over the workers of TF_CONFIG, by one of several systems; prints milliseconds.

sums.py copy: as many bytes are copied in memory instead, by all workers at once.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from sizes import RESNET, SHORT, SIZES, WARM_UP, resnet50, times

import strategies

Sum = Callable[[list[tf.Tensor]], list[tf.Tensor]]


def by_strategy(strategy: tf.distribute.Strategy) -> tuple[Sum, int]:
    def in_replica(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        # A function's own arguments have no device yet, which stock TensorFlow needs.
        tensors = [tf.identity(tensor) for tensor in tensors]
        return tf.distribute.get_replica_context().all_reduce("SUM", tensors)

    def sums(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        return strategy.run(in_replica, args=(tensors,))

    return sums, strategy.cluster_resolver.task_id


def by_horovod() -> tuple[Sum, int]:
    strategies.MultiWorkerMirroredStrategy(communication="horovod")  # starts it from TF_CONFIG
    import horovod.tensorflow as hvd

    return lambda tensors: hvd.grouped_allreduce(tensors, op=hvd.Sum), hvd.rank()


def system(name: str) -> tuple[Sum, int]:
    """Returns what sums a list of tensors inside a function, and this worker's number."""
    if name == "horovod":
        return by_horovod()
    if name == "stock":
        ring = tf.distribute.experimental.CommunicationOptions(
            implementation=tf.distribute.experimental.CommunicationImplementation.RING
        )
        return by_strategy(tf.distribute.MultiWorkerMirroredStrategy(communication_options=ring))
    communication = name.removesuffix("_strategy")
    return by_strategy(strategies.MultiWorkerMirroredStrategy(communication=communication))


def milliseconds(sums: Sum, numbers: list[int], count: int) -> float:
    """Returns the median time of a sum of tensors of so many numbers each."""
    function = tf.function(sums)
    tensors = [tf.fill([size], 1.0) for size in numbers]
    taken = []
    for _ in range(WARM_UP + count):
        start = time.perf_counter()
        result = function(tensors)
        taken.append(time.perf_counter() - start)
        total = float(result[0][0])
    workers = len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])
    if total != workers:
        raise RuntimeError(f"A sum of ones is the number of workers. Received: {total}.")
    return 1000 * statistics.median(taken[WARM_UP:])


def copying(numbers: list[int], count: int) -> float:
    """Returns the median time in which tensors of so many numbers each are copied."""
    sources = [np.ones([size], np.float32) for size in numbers]
    targets = [np.zeros_like(source) for source in sources]
    taken = []
    for _ in range(WARM_UP + count):
        start = time.perf_counter()
        for source, target in zip(sources, targets, strict=True):
            np.copyto(target, source)
        taken.append(time.perf_counter() - start)
    return 1000 * statistics.median(taken[WARM_UP:])


def main() -> None:
    if sys.argv[1] == "copy":
        measure, rank = copying, json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    else:
        sums, rank = system(sys.argv[1])
        measure = functools.partial(milliseconds, sums)
    short = "--short" in sys.argv
    found = {
        what: measure([size // 4], times(size, short))
        for what, size in (SHORT if short else SIZES).items()
    }
    found[RESNET] = measure(resnet50(), times(102 << 20, short))
    if rank == 0:
        print(f"RESULT {json.dumps(found)}", flush=True)


if __name__ == "__main__":
    main()
