"""Python generators that all workers read to the same position.

[Note: read equally far]
Some sources have a position that outlives an iterator: a Python generator, a shuffle that continues
over epochs, and the exchanges of a pipeline in which workers ask each other. An iterator that is
abandoned loses what it has prefetched, and workers of different speeds have prefetched different
numbers of batches. From there on they would train on parts of different batches, or wait in
different exchanges. So how far a worker has read must never depend on its speed: tf.data prefetches
nothing of such datasets (`no_prefetch_options`), Keras's generator is always read one batch ahead
(`prefetch_one`), and nothing is read only to learn the shapes of a batch (`placeholder_element`).
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
    """Returns a dataset that prefetches one batch of Keras 3's generator; other datasets unchanged.

    Keras abandons its iterator over a generator after the batch that it builds a model with, and
    starts another one in the next `fit`; `prefetch(AUTOTUNE)` reads as many batches as there is
    time for. See [Note: read equally far].

    Args:
      dataset: the dataset that Keras distributes.
    """
    if not (isinstance(dataset, PrefetchDataset) and replace_generator(prefetch_one)):
        return dataset
    (batches,) = dataset_inputs(dataset)
    options = no_prefetch_options()
    # Nothing here can be tuned, and ending the tuning may take a minute: see iterator_deletion.
    options.autotune.enabled = False
    return batches.with_options(options)


def prefetch_one(batches: Iterator[Any]) -> Iterator[Any]:
    """Yields the same batches, and prefetches the next one in a thread.

    When it is closed after n batches, exactly n + 1 have been taken, whatever the speed.

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
            # Before the batch is yielded: if the caller closes this generator there, the end of the
            # `with` block waits for the next batch, so one more is taken however fast anyone is.
            following = thread.submit(next, batches, end)
            yield batch
