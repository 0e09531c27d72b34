"""The click model and rows of parameter_server.py."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

SHORT = "--short" in sys.argv
INTEGERS, CATEGORIES = 13, 26
TABLE_ROWS, WIDTH = (10_001, 10) if SHORT else (1_000_001, 10)
ROWS = 512  # a step and worker
BATCHES = 50  # different ones
STEPS, WARM_UP = (10, 5) if SHORT else (400, 50)
EXPONENT = 1.1  # of the power law that ids follow


class Lookup(keras.layers.Embedding):
    """An embedding that gathers rows from the variable where it lies.

    Keras 3's own reads the whole table first, which a remote one has to send.
    """

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return tf.nn.embedding_lookup(self.embeddings.value, inputs)


def make_model(embedding: Callable[[int, int], keras.layers.Layer]) -> keras.Model:
    logarithms = keras.Input([INTEGERS])
    ids = keras.Input([CATEGORIES], dtype="int64")
    embeddings = keras.layers.Flatten()(embedding(TABLE_ROWS, WIDTH)(ids))
    x = keras.layers.Concatenate()([logarithms, embeddings])
    for _ in range(3):
        x = keras.layers.Dense(400, "relu")(x)
    return keras.Model([logarithms, ids], keras.layers.Dense(1, "sigmoid")(x))


def data() -> tf.data.Dataset:
    """Returns endless batches: ((logarithms, ids), labels)."""
    random = np.random.default_rng(int.from_bytes(os.urandom(4), "big"))
    logarithms = random.standard_normal([BATCHES, ROWS, INTEGERS], dtype=np.float32)
    power = 1 - EXPONENT
    uniform = random.random([BATCHES, ROWS, CATEGORIES])
    ranks = (1 - uniform * (1 - (TABLE_ROWS + 1.0) ** power)) ** (1 / power)
    # Each feature has its most frequent ids elsewhere in the table.
    ids = (ranks.astype(np.int64) + np.arange(CATEGORIES) * 7919) % TABLE_ROWS
    # What can be learned: a system whose loss does not fall is not measured.
    labels = (logarithms[..., :4].sum(-1, keepdims=True) > 0).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices(((logarithms, ids), labels)).repeat().prefetch(4)


def check_loss(loss: float) -> None:
    """Checks that a model has learned in its steps.

    Raises:
      RuntimeError: if its loss is no lower than that of a model that has not, 0.69.
    """
    if not (SHORT or loss < 0.6):
        raise RuntimeError(f"A system that is measured learns. Received: a last loss of {loss}.")


def optimizer(name: str) -> keras.optimizers.Optimizer:
    return {"sgd": keras.optimizers.SGD(0.1), "adam": keras.optimizers.Adam()}[name]
