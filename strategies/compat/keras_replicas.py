"""Saves and restores the state that calls leave in Keras's layers, for replicas that share layers.

[Note: replicas that share layers]
The replicas of a process call the same layers, in threads that take turns at synchronization points
such as the mean of a `BatchNormalization`; see [Note: merged replicas] in core/extended.py. At such
a point, the next replica overwrites what this replica's call stored in a layer's attributes: the
losses of `add_loss` and `activity_regularizer`, which Keras 3 keeps in a list that it clears when a
model is called, and tensors such as `self.last_mean = ...`. The replica would continue with values
of another replica, which its own tape has not recorded. So each replica saves them before it waits,
and restores them afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import tensorflow as tf

from strategies.compat.call_stack import visible_objects

# In Keras 3; in tf_keras, each thread has its own list.
_LOSSES = "_losses"
# The method of layers, of Keras 3 and tf_keras alike, that returns their layers and themselves.
_FLATTEN = "_flatten_layers"
_LIBRARIES = frozenset(["keras", "tf_keras", "tensorflow", "strategies", "threading"])
_TENSORS = (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)


@contextlib.contextmanager
def keep_state_of_calls() -> Iterator[None]:
    """Restores, after a block in which other replicas run, the state of this replica's calls.

    See [Note: replicas that share layers]. The layers are those of all models and layers that the
    running functions refer to: a custom training loop may read the losses of a model that it called
    before the one that is running.
    """
    roots = [each for each in visible_objects(_LIBRARIES) if hasattr(type(each), _FLATTEN)]
    layers = {
        id(layer): layer
        for root in {id(root): root for root in roots}.values()
        for layer in getattr(root, _FLATTEN)()
    }
    saved = [(layer, _tensors_of(layer), _losses_of(layer)) for layer in layers.values()]
    yield
    for layer, tensors, losses in saved:
        vars(layer).update(tensors)
        added = getattr(layer, _LOSSES, None)
        if losses is not None and added is not None:
            added.clear()
            added.extend(losses)


def _tensors_of(layer: Any) -> dict[str, Any]:
    """Returns the attributes of a layer that are tensors, or lists or dictionaries of them."""
    if type(layer).__module__.partition(".")[0] in _LIBRARIES:
        return {}  # Keras's own layers keep none, and a model may have hundreds of them
    return {
        name: value
        for name, value in vars(layer).items()
        if name != _LOSSES and any(isinstance(each, _TENSORS) for each in _elements(value))
    }


def _elements(value: Any) -> Collection[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, (list, tuple)) else (value,)


def _losses_of(layer: Any) -> list[Any] | None:
    losses = vars(layer).get(_LOSSES)
    return list(losses) if isinstance(losses, list) else None
