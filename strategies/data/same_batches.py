"""Compares, during training, the global batches that workers divide among themselves.

Workers that shuffle differently would train on some examples twice and miss others. Each worker's
pipeline adds up fingerprints of the global batches, and attaches the sum to each batch. Workers
compare the sums when they take a batch: in program order, and not in the pipelines, each of which
is a different number of batches ahead. A sum covers all previous batches, so a few suffice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from strategies.collectives.base import Collectives
from strategies.data.elements import scan_dataset, without_autograph
from strategies.data.input_consistency import different_examples_message
from strategies.utils.devices import HOST

# The batches compared are those whose number is a power of two or a multiple of this one.
_PERIOD = 256
_COLUMNS = 256
_SAMPLED = 32  # the number of examples, and of values of each
SUMMARY_SPEC = tf.TensorSpec([None], tf.int64)
# Different processors compute the same floats except for the last bits.
_TOLERANCE = 1e-4
# For each component: whether it has floats, whether its examples differ, and its fingerprint.
_NUMBERS = 3


class BatchComparison:
    """Compares the sums of fingerprints of all workers.

    Args:
      stream: a stream of collectives that nothing else uses.
    """

    def __init__(self, stream: Collectives):
        self._stream = stream
        self._is_warned = False

    def check_batch(self, summary: tf.Tensor, batch: Any, first_only: bool = False) -> Any:
        """Compares a batch's summary if due, and returns the batch; all workers must call it.

        Args:
          summary: the summary that `add_summaries` attached to the batch.
          batch: the batch.
          first_only: whether only the first batch of an epoch is compared.
        """
        with tf.device(HOST):  # where summaries are, and where Python functions run
            number, is_due = summary[0] + 1, summary[1] > 0
            if first_only:
                is_due = tf.equal(number, 1)
            compared = tf.cond(
                is_due,
                lambda: tf.numpy_function(
                    self._compare, [self._stream.all_gather(summary[tf.newaxis])], tf.bool
                ),
                lambda: tf.constant(True),
            )
        with tf.control_dependencies([compared]):
            return tf.nest.map_structure(tf.identity, batch, expand_composites=True)

    def _compare(self, summaries: np.ndarray) -> np.bool_:
        first = summaries[0]
        for rank, each in enumerate(summaries[1:], 1):
            kind = _difference(each, first)
            if not kind:
                continue
            text = different_examples_message(rank, f", in batch {first[2]} of an epoch or before")
            if kind == "order":
                raise ValueError(text)
            if not self._is_warned:  # once, although batches of each epoch are compared
                self._is_warned = True
                logging.warning("%s", text)
        return np.bool_(True)


def add_summaries(dataset: tf.data.Dataset, size: int) -> tf.data.Dataset:
    """Replaces the fingerprint of each batch by a summary of this and all previous batches.

    A summary has the number of the element, from 0; whether it is to be compared; the number of
    elements with a batch up to this one; and the sums of the fingerprints.

    Args:
      dataset: pairs of the result of `fingerprint` and a batch. An empty fingerprint belongs to a
        worker that has no more batches.
      size: the length of the other fingerprints.
    """
    last = int(dataset.cardinality()) - 1

    @without_autograph
    def add(state: tf.Tensor, pair: tuple[tf.Tensor, Any]) -> tuple[tf.Tensor, Any]:
        new, batch = pair
        number = state[0] + 1
        count, sums = tf.cond(
            tf.size(new) > 0,
            lambda: (state[2] + 1, _add_fingerprint(state[3:], tf.reshape(new, [size]), number)),
            lambda: (state[2], state[3:]),
        )
        # All workers must take part in a comparison. So when one is due must depend only on the
        # elements' numbers, which are the same on all workers (`equal_steps`), and not on whether
        # this worker still has batches.
        is_power = tf.equal(tf.bitwise.bitwise_and(number + 1, number), 0)
        is_due = is_power | tf.equal((number + 1) % _PERIOD, 0) | tf.equal(number, last)
        head = tf.stack([number, tf.cast(is_due, tf.int64), count])
        summary = tf.ensure_shape(tf.concat([head, sums], 0), [3 + size])
        # Of unknown length, because the spec of a `ComparedIterator` is `SUMMARY_SPEC`.
        return summary, (tf.raw_ops.PlaceholderWithDefault(input=summary, shape=[None]), batch)

    start = tf.constant([-1, 0, 0] + [0] * size, tf.int64)
    return scan_dataset(dataset, start, add)


def fingerprint(batch: Any) -> tf.Tensor:
    """Returns numbers that depend on all values of a batch and their order, an int64 vector.

    Small differences in the last digits of floats hardly change it.
    """
    numbers = [
        tf.stack([tf.constant(values.dtype.is_floating, tf.int64), is_varied, number])
        for values, is_varied, number in _numbers(batch)
    ]
    if not numbers:
        return tf.zeros([0], tf.int64)
    return tf.reshape(tf.stack(numbers), [len(numbers) * _NUMBERS])


def _numbers(batch: Any) -> Iterator[tuple[tf.Tensor, tf.Tensor, tf.Tensor]]:
    """Yields the tensors of a batch, whether their examples differ, and their fingerprints."""
    for value in tf.nest.flatten(batch):
        parts = tf.nest.flatten(value, expand_composites=True)
        for part in parts:
            if part.dtype.is_floating:
                number = tf.bitcast(_project_floats(part), tf.int64)
            elif part.dtype == tf.string:
                number = _hash_values(_without_directories(part))
            elif part.dtype.is_integer or part.dtype.is_bool:
                number = _hash_values(part)
            else:
                continue
            # The structure of ragged and sparse tensors differs between examples anyway.
            yield part, tf.constant(0, tf.int64) if len(parts) > 1 else _is_varied(part), number


def _without_directories(texts: tf.Tensor) -> tf.Tensor:
    """Strips directories, which may differ between hosts, if the texts look like paths."""
    is_path = tf.strings.regex_full_match(tf.reshape(texts, [-1])[:1], ".*/.*")
    return tf.cond(
        tf.reduce_any(is_path),
        lambda: tf.strings.regex_replace(texts, "^.*/", ""),
        lambda: texts,
    )


def _hash_values(values: tf.Tensor) -> tf.Tensor:
    one = tf.reshape(values, [1, -1])
    return tf.bitcast(tf.raw_ops.Fingerprint(data=one, method="farmhash64")[0], tf.int64)


def _project_floats(values: tf.Tensor) -> tf.Tensor:
    """Returns the cosine of the angle between floats and a fixed pseudo-random vector.

    Unlike a checksum, it hardly changes with the last bits of the floats; unlike their sum, it
    changes with their order.
    """
    flat = tf.reshape(tf.cast(values, tf.float32), [-1])
    flat = tf.where(tf.math.is_finite(flat), flat, 0.0)
    flat = tf.pad(flat, [[0, -tf.size(flat) % _COLUMNS]])
    table = tf.reshape(flat, [-1, _COLUMNS])
    noise = np.arange(_COLUMNS) * 40503 % 65536 / 32768 - 1.0
    products = tf.linalg.matvec(table, tf.constant(noise, tf.float32))
    places = tf.range(tf.shape(table)[0])
    # Multiplied as integers, whose products are the same on all processors. 40503 is 2**16 divided
    # by the golden ratio: Fibonacci hashing (Knuth, The Art of Computer Programming 3, 6.4).
    mixed = tf.cast(places * 40503 % 65536, tf.float32) / 65536 - 0.5
    length = tf.sqrt(tf.reduce_sum(tf.cast(tf.reduce_sum(tf.square(table), 1), tf.float64)))
    product = tf.reduce_sum(tf.cast(products * (mixed + 1.0), tf.float64))
    return tf.math.divide_no_nan(product, length)


def _is_varied(values: tf.Tensor) -> tf.Tensor:
    """Returns 1 if some examples of a tensor differ, else 0."""
    if not values.shape.rank:
        return tf.constant(0, tf.int64)
    flat = tf.reshape(values, [tf.shape(values)[0], -1]) if values.shape.rank > 1 else values
    sample = flat[:: tf.shape(flat)[0] // _SAMPLED + 1]
    if values.shape.rank > 1:
        sample = sample[:, :: tf.shape(flat)[1] // _SAMPLED + 1]
    return tf.cast(tf.reduce_any(tf.not_equal(sample, sample[:1])), tf.int64)


def _add_fingerprint(sums: tf.Tensor, new: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    """Returns sums with the fingerprint of batch `number` added."""
    before, more = (tf.reshape(each, [-1, _NUMBERS]) for each in (sums, new))
    # The factors make the sums depend on the order of the batches.
    factor = 1.0 + tf.cast(number * 40503 % 65536, tf.float64) / 65536
    old, new = (tf.bitcast(each[:, 2], tf.float64) for each in (before, more))
    sum_of_floats = tf.bitcast(old + factor * new, tf.int64)
    value = tf.where(more[:, 0] > 0, sum_of_floats, before[:, 2] * 31 + more[:, 2])
    varied = tf.maximum(before[:, 1], more[:, 1])
    return tf.reshape(tf.stack([more[:, 0], varied, value], 1), [-1])


def _difference(summary: np.ndarray, first: np.ndarray) -> str:
    """Returns "order" if examples differ, "floats" if only some of their floats differ, else ""."""
    if summary[2] != first[2]:
        return "order"
    here, other = (each[3:].reshape(-1, _NUMBERS) for each in (summary, first))
    is_float = other[:, 0] > 0
    floats, others = (np.ascontiguousarray(each[:, 2]).view(np.float64) for each in (here, other))
    with np.errstate(invalid="ignore"):
        close = np.isclose(floats, others, rtol=0, atol=_TOLERANCE)
    is_same = np.where(is_float, close, here[:, 2] == other[:, 2])
    if is_same.all():
        return ""
    # Floats may be augmented at random on each worker. This is not an error if another component,
    # whose examples differ from each other, shows that examples and order are the same.
    is_shown = (is_same & (here[:, 1] > 0)).any()
    return "floats" if is_same[~is_float].all() and is_shown else "order"
