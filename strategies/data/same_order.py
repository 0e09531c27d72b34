"""Makes all workers read a dataset in the same order, even if their seeds differ."""

from __future__ import annotations

import re
import secrets
import zlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from strategies.collectives.base import Collectives
from strategies.compat.tensorflow import (
    captures_dataset,
    dataset_inputs,
    dataset_order,
    dataset_tensors,
    global_seed,
)
from strategies.data.sharding import is_divided

# The position of the first of the two seeds among an operation's inputs.
_SEED_INPUTS = {
    "RandomDataset": 0,
    "RandomDatasetV2": 0,
    "SamplingDataset": 2,
    "ShuffleDataset": 2,
    "ShuffleDatasetV3": 2,
}
# Operations whose input after the seeds is the generator that was created from the seeds.
_GENERATOR_INPUTS = ("RandomDatasetV2", "ShuffleDatasetV3")
# A larger dataset is not copied, because its tensors are copied too. TensorFlow's limit is 2 GiB.
_MOST_BYTES = 2**30
_IGNORE = tf.data.experimental.ExternalStatePolicy.IGNORE


def in_common_order(dataset: tf.data.Dataset, collectives: Collectives) -> tf.data.Dataset:
    """Returns a dataset with the same order on all workers; waits for all workers.

    Users may seed by rank, as tutorials of Horovod and PyTorch do, or read with
    `deterministic=False`. If the seeds of a dataset that workers divide differ, or if its order
    depends on speed, its operations are copied with common seeds and made deterministic. A dataset
    that cannot be copied is returned unchanged; workers compare all batches (`BatchComparison`).

    Args:
      dataset: global batches.
      collectives: the workers.
    """
    if collectives.size == 1 or not tf.executing_eagerly():
        return dataset
    seeds, is_random = _order(dataset)
    seed = secrets.randbelow(2**31) if global_seed() is None else int(global_seed() or 0)
    own = [zlib.crc32(str(seeds).encode()), int(is_random), int(is_divided(dataset)), seed]
    # Every worker decides from the values of all, so that either all of them copy or none does.
    gathered = collectives.all_gather(tf.constant([own], tf.int64)).numpy().tolist()
    is_common = len({checksum for checksum, *_ in gathered}) == 1
    is_common = is_common and not any(is_random for _, is_random, *_ in gathered)
    if is_common or not all(divided for _, _, divided, _ in gathered):
        return dataset
    copied = _copy_with_seed(dataset, gathered[0][3])
    logging.warning(
        "All workers must read and shuffle the examples in the same order, because each batch is "
        "divided among them. Received: seeds that differ or deterministic=False, %s. Do not add "
        "the rank to the seed: each replica draws its own random numbers anyway.",
        "in a dataset that runs Python code, is too large or cannot be copied, so its order is "
        "unchanged"
        if copied is None
        else "so the examples are shuffled with a common seed, and read in order",
    )
    return dataset if copied is None else copied


def _with_inputs(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    """Yields a dataset and all of its inputs."""
    yield dataset
    for one in dataset_inputs(dataset):
        yield from _with_inputs(one)


def _order(dataset: tf.data.Dataset) -> tuple[list[int], bool]:
    """Returns the seeds of a dataset, and whether its order is random in spite of them."""
    # Datasets that functions captured can only be read from a graph. But a graph contains all
    # tensors, and not every dataset can be converted to one, so otherwise Python objects are read.
    graph = _graph(dataset) if any(map(captures_dataset, _with_inputs(dataset))) else None
    if graph is not None:
        return _order_of_graph(graph)
    seeds, is_random = [], False
    for one in _with_inputs(dataset):
        own_seeds, is_own_random = dataset_order(one)
        seeds += own_seeds
        is_random = is_random or is_own_random
    return seeds, is_random


def _order_of_graph(graph: Any) -> tuple[list[int], bool]:
    """Returns the same as `_order`, from the `GraphDef` of a dataset."""
    seeds, is_random = [], False
    for nodes in [graph.node, *(each.node_def for each in graph.library.function)]:
        constants = {node.name: node.attr["value"].tensor for node in nodes if node.op == "Const"}
        for node in nodes:
            first = _SEED_INPUTS.get(node.op)
            if "deterministic" in node.attr and node.attr["deterministic"].s == b"false":
                is_random = True
            if first is not None:
                names = [name.partition(":")[0] for name in node.input[first : first + 2]]
                known = [constants[name] for name in names if name in constants]
                pair = [int(tf.make_ndarray(each)) for each in known]
            elif {"seed", "seed2"} <= set(node.attr):
                pair = [node.attr["seed"].i, node.attr["seed2"].i]
                # Other operations draw random numbers, which may differ between workers.
                if node.op != "RandomShuffle":
                    seeds += pair
                    continue
            else:
                continue
            seeds += pair
            is_random = is_random or not any(pair)
    return seeds, is_random


def _graph(dataset: tf.data.Dataset) -> Any:
    """Returns the `GraphDef` of a dataset; None if it runs Python code or cannot be copied."""
    tensors = [tensor for one in _with_inputs(dataset) for tensor in dataset_tensors(one)]
    size = sum(each.dtype.size * (each.shape.num_elements() or 0) for each in tensors)
    if size > _MOST_BYTES:
        return None
    try:
        serialized = tf.raw_ops.DatasetToGraphV2(
            input_dataset=tf.data.experimental.to_variant(dataset),
            external_state_policy=_IGNORE.value,
        )
    except tf.errors.OpError as error:
        logging.debug("A dataset keeps its own order: %s", error)
        return None
    graph = tf.compat.v1.GraphDef.FromString(serialized.numpy())
    nodes = [*graph.node, *(node for one in graph.library.function for node in one.node_def)]
    return None if any(node.op == "GeneratorDataset" for node in nodes) else graph


def _copy_with_seed(dataset: tf.data.Dataset, seed: int) -> tf.data.Dataset | None:
    """Returns a dataset of the same operations, seeded and deterministic; None if that fails."""
    graph = _graph(dataset)
    if graph is None:
        return None
    functions = sorted(graph.library.function, key=_creation)
    number = _set_order(graph.node, seed, 0)
    for function in functions:
        number = _set_order(function.node_def, seed, number, is_function=True)
    try:
        variant = tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString())
    except tf.errors.OpError as error:
        logging.debug("A dataset keeps its own order: %s", error)
        return None
    copied = tf.data.experimental.from_variant(variant, dataset.element_spec)
    # Functions and tables are deleted with the dataset that they were created for.
    copied.original = dataset
    return copied.with_options(dataset.options())


def _creation(function: Any) -> tuple[int, str]:
    """Returns a key that sorts functions in the order of their creation, alike on all workers."""
    name = function.signature.name
    number = re.search(r"(\d+)$", name)
    return int(number[1]) if number else 0, name


def _set_order(nodes: Any, seed: int, number: int, is_function: bool = False) -> int:
    """Sets the seeds of all operations, and makes them deterministic; returns the next number.

    The second seed is the operation's number, so that no two operations draw the same numbers.

    Args:
      nodes: the operations of a graph or function.
      seed: the first seed.
      number: the number of the first operation.
      is_function: whether they are operations of a function, in which inputs have another syntax.
    """
    for node in list(nodes):
        if "deterministic" in node.attr and node.attr["deterministic"].s == b"false":
            node.attr["deterministic"].s = b"true"
        first = _SEED_INPUTS.get(node.op)
        if first is None and not {"seed", "seed2"} <= set(node.attr):
            continue
        number += 1
        if first is None:
            node.attr["seed"].i, node.attr["seed2"].i = seed, number
            continue
        for place, value in ((first, seed), (first + 1, number)):
            constant = nodes.add(name=f"common_seed_{number}_{place}", op="Const")
            constant.attr["dtype"].type = tf.int64.as_datatype_enum
            constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, tf.int64, []))
            node.input[place] = constant.name + (":output:0" if is_function else "")
        if node.op in _GENERATOR_INPUTS:
            # With a dummy generator as input, the operation creates its own from the seeds.
            generator = nodes.add(name=f"common_generator_{number}", op="DummySeedGenerator")
            node.input[first + 2] = generator.name + (":handle:0" if is_function else "")
    return number
