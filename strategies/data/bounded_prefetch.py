"""Bounds the prefetching of Python generators, so that all workers read to the same position.

[Note: read equally far]
Some sources have a position that outlives an iterator: a Python generator, a shuffle that continues
over epochs, and the exchanges of a pipeline in which workers ask each other. An abandoned iterator
loses the batches that it has prefetched, and faster workers have prefetched more of them. From then
on, workers would train on parts of different batches, or wait in different exchanges. So how far a
worker has read must never depend on its speed: tf.data prefetches nothing from such datasets
(`no_prefetch_options`), Keras's generator is always read exactly one batch ahead (`prefetch_one`),
and nothing is read only to learn the shapes of a batch (`placeholder_element`).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow as tf

from strategies.compat.keras import replace_generator
from strategies.compat.tensorflow import PrefetchDataset, dataset_inputs
from strategies.data.sharding import no_prefetch_options


def bound_prefetch(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Makes a dataset of Keras 3 prefetch one batch of its generator; returns others unchanged.

    Keras abandons its iterator over a generator after the batch with which it builds a model, and
    starts another one in the next `fit`; `prefetch(AUTOTUNE)` would have read an arbitrary number
    of batches by then. See [Note: read equally far].

    Args:
      dataset: the dataset that Keras distributes.
    """
    if not (isinstance(dataset, PrefetchDataset) and replace_generator(prefetch_one)):
        return dataset
    (batches,) = dataset_inputs(dataset)
    options = no_prefetch_options()
    # There is nothing to tune, and stopping the tuning may take a minute; see iterator_deletion.py.
    options.autotune.enabled = False
    return batches.with_options(options)


def prefetch_one(batches: Iterator[Any]) -> Iterator[Any]:
    """Yields the same batches, and prefetches the next one in a thread.

    When it is closed after n batches, it has taken exactly n + 1, whatever the workers' speed.

    >>> numbers = iter(range(10))
    >>> ahead = prefetch_one(numbers)
    >>> next(ahead), next(ahead)
    (0, 1)
    >>> ahead.close()
    >>> next(numbers)
    3
    """
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="generator") as thread:
        following = thread.submit(next, batches, end)
        while (batch := following.result()) is not end:
            # Before the `yield`: if the caller closes this generator there, the end of the `with`
            # block waits for the next batch, so exactly one more is taken.
            following = thread.submit(next, batches, end)
            yield batch
