"""Parallel reading of many files into shuffled and prefetched batches."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from strategies.collectives import Collectives, LocalCollectives
from strategies.collectives.workers import collectives_in_step, collectives_of
from strategies.data.elements import (
    append_empty,
    common_sizes,
    has_unknown_sizes,
    without_autograph,
)
from strategies.data.sharding import mark_sharded
from strategies.utils.argument_checks import check_whole_number
from strategies.utils.partitioning import part_bounds
from tf_config.worker_range import WorkerRange

_SHARDS = ("auto", "files", "rows")
_UNEVEN = ("empty", "resample", "cut")
_NAMED = 3  # files in a message


def read_files(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    strategy: tf.distribute.Strategy,
    batch_size: int,
    *,
    reader: Callable[[tf.Tensor], tf.data.Dataset] = tf.data.TextLineDataset,
    readers: int = 8,
    shuffle: int = 10_000,
    seed: int | None = None,
    shard: str = "auto",
    uneven: str = "empty",
    steps: int | None = None,
) -> tf.data.Dataset:
    """Returns a dataset of this worker's batches of the examples in many files.

    Call it with the same arguments on all workers. Each worker reads several of its files at once,
    takes examples from them in turn, shuffles the examples, and prefetches batches:

        def read(file):
            return tf.data.TextLineDataset(file).map(parse)

        dataset = strategies.read_files("data/*.txt", strategy, batch_size=1024, reader=read)
        model.fit(dataset, epochs=3)

    Every epoch has a different order. With a seed, a new run with the same number of workers has
    the same orders, provided that `reader` returns the examples of a file in the same order.

    If some workers have more examples than others, `uneven` determines how an epoch ends:

    * "empty": every example is read once. A worker that has no more examples continues with empty
      batches, which have no effect, until the last worker is done.
    * "resample": a worker that has no more examples reads its examples again, in a different order,
      until the last worker is done. All batches are full.
    * "cut": all workers stop when the first one has no more examples; the others' last examples are
      omitted.

    To determine the number of steps before training, each worker reads its files once and counts
    the examples, so that workers need not ask each other in each step. Pass `steps` to avoid this.

    Pass the dataset to `fit` or `strategy.experimental_distribute_dataset` unchanged. `evaluate`
    and `predict` cover the examples of all workers: where workers do not wait for each other
    (`ParameterServerStrategy`, except in "sync"), each worker reads all files, in their order.

    Args:
      files: file names, or patterns such as "data/part-*"; the same files on all workers. Files
        are sorted by name.
      strategy: the strategy of the workers.
      batch_size: the number of examples per step, of all workers together.
      reader: a function that creates a dataset of the examples of a file from its name:
        `tf.data.TextLineDataset`, `tf.data.TFRecordDataset`, or your own.
      readers: the number of files that each worker reads at once.
      shuffle: the size of the shuffle buffer, in examples; 0 keeps the order of examples and files.
      seed: the seed of the orders; None means TensorFlow's global seed.
      shard: "files" gives worker r of N the files r, r + N, ..., so that each worker reads only
        its own files. With "rows", every worker reads all files and keeps every N-th example.
        "auto" means "files", or "rows" with a warning if there are fewer files than workers.
      uneven: "empty", "resample" or "cut".
      steps: the number of steps in an epoch. None means as many as the examples suffice for; "cut"
        requires None.

    Raises:
      ValueError: if a name matches no file, if workers find different files, if there are fewer
        files than workers for `shard="files"` or fewer examples in a batch than workers, if a
        worker has no examples for `uneven="cut"`, or if an argument is not valid.
    """
    _check_arguments(batch_size, readers, shuffle, shard, uneven, steps)
    names = names_of(files)
    # The examples of an elastic job are divided in each epoch, when it is known who is there.
    is_elastic = WorkerRange.from_env() is not None
    collectives = LocalCollectives() if is_elastic else collectives_of(strategy)
    # Workers that are not in step may be restarted individually, so they communicate only if they
    # must.
    others = collectives if steps is None or is_elastic else collectives_in_step(strategy)
    _check_same_names(names, others)
    shard = shard_unit(names, shard, collectives)
    examples = examples_of(names, collectives, reader, readers, shuffle, seed, shard)
    size = _local_batch_size(batch_size, collectives)
    ordered = examples_of(names, collectives, reader, readers, shard=shard)
    if steps is None:
        steps = _steps(ordered, size, uneven, collectives)

    # From examples in order: an iterator over shuffled ones would change the order of the next one.
    sizes = common_sizes(ordered.batch(size), others)
    if sizes is None:
        _check_sizes(ordered.batch(size).element_spec, steps)

    def read_whole_file() -> tf.data.Dataset:
        examples = examples_of(names, LocalCollectives(), reader, readers)
        return batches_of(examples, batch_size, "empty", steps, sizes)

    batches = batches_of(examples, size, uneven, steps, sizes)
    return batches if is_elastic else mark_sharded(batches, read_whole_file)


def names_of(files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    """Returns the files that match names and patterns, sorted and without duplicates.

    Raises:
      ValueError: if a name or pattern matches no file.
    """
    patterns = [files] if isinstance(files, (str, os.PathLike)) else list(files)
    names: set[str] = set()
    for pattern in patterns:
        matches = tf.io.gfile.glob(os.fspath(pattern))
        if not matches:
            raise ValueError(
                "Each pattern must match a file on every worker. Received: "
                f"{os.fspath(pattern)!r}, which matches none. Correct the name or the pattern."
            )
        names.update(matches)
    if not names:
        raise ValueError(
            "At least one file must be given. Received: none. Pass the names of the files."
        )
    return sorted(names)


def _check_same_names(names: Sequence[str], collectives: Collectives) -> None:
    """Checks that all workers found the same file names; their directories may differ.

    Raises:
      ValueError: if a worker found other files than the first one; on all workers.
    """
    text = "\n".join(name.rpartition("/")[2] for name in names)
    own = tf.constant([[len(names), zlib.crc32(text.encode())]], tf.int64)
    gathered = collectives.all_gather(own).numpy().tolist()
    others = [rank for rank, each in enumerate(gathered) if each != gathered[0]]
    if others:
        raise ValueError(
            f"Every worker must see the same files. Received: {gathered[0][0]} files on worker 0, "
            f"and {gathered[others[0]][0]} with other names on worker {others[0]}. Put all files "
            "where every worker can read them; or, if each worker should read its own files, call "
            "strategy.distribute_datasets_from_function."
        )


def examples_of(
    names: Sequence[str],
    collectives: Collectives,
    reader: Callable[[tf.Tensor], tf.data.Dataset] = tf.data.TextLineDataset,
    readers: int = 8,
    shuffle: int = 0,
    seed: int | None = None,
    shard: str = "files",
) -> tf.data.Dataset:
    """Returns this worker's examples; the arguments are those of `read_files`."""
    by_files = shard == "files"
    files = tf.data.Dataset.from_tensor_slices(list(names))
    if by_files:
        files = files.shard(collectives.size, collectives.rank)
        if shuffle:
            files = files.shuffle(len(names), seed=seed)
    # Deterministic, so that the order does not depend on which file is read faster.
    examples = files.interleave(
        reader, cycle_length=readers, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
    )
    if not by_files:
        examples = examples.shard(collectives.size, collectives.rank)
    return examples.shuffle(shuffle, seed=seed) if shuffle else examples


def batches_of(
    examples: tf.data.Dataset, size: int, uneven: str, steps: int, sizes: tf.Tensor | None = None
) -> tf.data.Dataset:
    """Returns `steps` batches of a worker's examples; the last ones are empty if it has no more.

    Empty batches have the inner sizes of the last batch, or `sizes` if the worker has no examples.

    >>> examples = tf.data.Dataset.range(3)
    >>> [batch.numpy().tolist() for batch in batches_of(examples, 2, "empty", 3)]
    [[0, 1], [2], []]
    >>> [batch.numpy().tolist() for batch in batches_of(examples, 2, "resample", 3)]
    [[0, 1], [2, 0], [1, 2]]
    """
    batches = (examples.repeat() if uneven == "resample" else examples).batch(size)
    # Even "resample" ends if a worker has no examples at all.
    batches = append_empty(batches, sizes=sizes).map(without_autograph(lambda _, batch: batch))
    return batches.take(steps).prefetch(tf.data.AUTOTUNE)


def _check_sizes(spec: Any, steps: int) -> None:
    """Checks that the shapes of empty batches are known if the worker has no examples."""
    if steps and has_unknown_sizes(spec):
        raise ValueError(
            "The reader must return tensors of known shape to a worker without examples. "
            f"Received: no examples for this worker, and batches of {spec}. Return tensors of "
            "fixed shape, for example tf.ensure_shape(example, [3]), or pass shard='rows'."
        )


def _steps(examples: tf.data.Dataset, size: int, uneven: str, collectives: Collectives) -> int:
    """Returns the number of steps, of batches of `size` examples on this worker."""
    count = examples.reduce(tf.constant(0, tf.int64), lambda total, *example: total + 1)
    counts = collectives.all_gather(-(-count[tf.newaxis] // size)).numpy().tolist()
    if uneven == "cut" and not min(counts):
        raise ValueError(
            "With uneven='cut' every worker must have examples, because training ends with the "
            f"worker that has the fewest. Received: no examples for worker {counts.index(0)}. "
            "Pass uneven='empty', or shard='rows'."
        )
    return min(counts) if uneven == "cut" else max(counts)


def shard_unit(names: Sequence[str], shard: str, collectives: Collectives) -> str:
    """Returns the unit of sharding, "files" or "rows"."""
    if shard == "rows" or collectives.size <= len(names):
        return "rows" if shard == "rows" else "files"
    listed = ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
    if shard == "files":
        raise ValueError(
            f"With shard='files' each worker must have at least one file. Received: {len(names)} "
            f"for {collectives.size} workers: {listed}. Split them into more files with "
            "'tf-config split', or pass shard='rows'."
        )
    logging.warning(
        "There are fewer files than workers, so every worker reads all of %s and keeps one of "
        "every %d examples. Split the files with 'tf-config split', or pass shard='rows' if this "
        "is intended.",
        listed,
        collectives.size,
    )
    return "rows"


def _local_batch_size(batch_size: int, collectives: Collectives) -> int:
    """Returns this worker's batch size; the first workers may have one more example than others."""
    if batch_size < collectives.size:
        raise ValueError(
            f"batch_size must be at least the number of workers, {collectives.size}. Received: "
            f"batch_size={batch_size}. It is the global batch size: increase it."
        )
    start, stop = part_bounds(batch_size, collectives.rank, collectives.size)
    return stop - start


def _check_arguments(
    batch_size: int, readers: int, shuffle: int, shard: str, uneven: str, steps: int | None
) -> None:
    numbers = {"batch_size": (batch_size, 1), "readers": (readers, 1), "shuffle": (shuffle, 0)}
    if steps is not None:
        numbers["steps"] = (steps, 1)
    for name, (value, least) in numbers.items():
        check_whole_number(name, value, least)
    for name, chosen, known in (("shard", shard, _SHARDS), ("uneven", uneven, _UNEVEN)):
        if chosen not in known:
            raise ValueError(
                f"{name} must be one of {', '.join(map(repr, known))}. Received: {chosen!r}."
            )
    if uneven == "cut" and steps is not None:
        raise ValueError(
            "uneven='cut' and steps cannot be combined, because 'cut' determines the number of "
            f"steps from the worker with the fewest examples. Received: steps={steps}. Omit steps; "
            "or omit uneven, if every worker has examples for that many steps."
        )
