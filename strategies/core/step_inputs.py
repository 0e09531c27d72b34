"""The inputs of a step: whether they exist, and how many examples each replica has."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from strategies.compat.tensorflow import select_replica
from strategies.core.operation_order import delay_effects
from strategies.data.elements import count_examples


class StepInputs:
    """The arguments of the function passed to `strategy.run`, by replica.

    Args:
      args: the arguments, with `PerReplica` values.
      kwargs: the keyword arguments.
      devices: the devices of the replicas.
    """

    def __init__(self, args: Any, kwargs: Any, devices: Sequence[str]):
        self._devices = devices
        by_replica = [select_replica(n, (tuple(args), dict(kwargs))) for n in range(len(devices))]
        self._leaves = [_tensors(inputs) for inputs in by_replica]

    def weights(self) -> dict[int, tf.Tensor]:
        """Returns the weight of each replica's inputs: 1 if it has examples, else 0.

        See [Note: replicas without examples] in reduction/cross_device_ops.py.
        """
        weights = {}
        for replica, device in enumerate(self._devices):
            with tf.device(device):
                weights[replica] = _weight(self._leaves[replica])
        return weights

    def counts(self, dtype: tf.DType = tf.float32) -> dict[int, tf.Tensor]:
        """Returns the number of examples of each replica's inputs."""
        counts = {}
        for replica, device in enumerate(self._devices):
            sized = [leaf for leaf in self._leaves[replica] if leaf.shape.rank]
            with tf.device(device):
                number = count_examples(sized[0]) if sized else tf.constant(1)
                counts[replica] = tf.cast(number, dtype)
        return counts

    @contextlib.contextmanager
    def guard_effects(self) -> Iterator[None]:
        """Makes what the block adds to a step have no effect if the inputs do not exist.

        If the length of the data is unknown, Keras 3.15 and tf_keras learn of their end when the
        operation that gets the next batch fails inside the function of the step. TensorFlow still
        runs operations that do not depend on the batch, before or after the failure: the step would
        be counted, random seeds would advance, and metrics would count the examples of a batch
        whose size is known statically. So all operations with effects depend on the batch.
        """
        exist = self._exist()
        with contextlib.nullcontext() if exist is None else delay_effects(exist):
            yield

    def _exist(self) -> tf.Operation | None:
        """Returns an operation that runs if the inputs exist; None if they exist already."""
        tensors = {id(each): each for leaves in self._leaves for each in _components(leaves)}
        symbolic = [each for each in tensors.values() if tf.is_symbolic_tensor(each)]
        return None if tf.executing_eagerly() or not symbolic else tf.group(*symbolic)


def _tensors(inputs: Any) -> list[tf.Tensor | tf.RaggedTensor | tf.SparseTensor]:
    kinds = (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)
    return [leaf for leaf in tf.nest.flatten(inputs) if isinstance(leaf, kinds)]


def _components(leaves: Sequence[Any]) -> list[tf.Tensor]:
    return tf.nest.flatten(leaves, expand_composites=True)


def _weight(leaves: Sequence[Any]) -> tf.Tensor:
    for leaf in leaves:
        if leaf.shape.rank:
            if leaf.shape[0] is None:
                return tf.cast(count_examples(leaf) > 0, tf.float32)
            # A constant, for which `_finite_where_counted` adds no operation to the step.
            return tf.constant(1.0 if leaf.shape[0] else 0.0)
    return tf.constant(1.0)
