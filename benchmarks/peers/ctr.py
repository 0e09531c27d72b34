"""The click model and rows of parameter_server.py, for TensorFlow."""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf
from ctr_data import CATEGORIES, HIDDEN_LAYERS, INTEGERS, TABLE_ROWS, UNITS, WIDTH, batches


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
    for _ in range(HIDDEN_LAYERS):
        x = keras.layers.Dense(UNITS, "relu")(x)
    return keras.Model([logarithms, ids], keras.layers.Dense(1, "sigmoid")(x))


def data() -> tf.data.Dataset:
    """Returns endless batches: ((logarithms, ids), labels)."""
    logarithms, ids, labels = batches()
    return tf.data.Dataset.from_tensor_slices(((logarithms, ids), labels)).repeat().prefetch(4)


def optimizer(name: str) -> keras.optimizers.Optimizer:
    return {"sgd": keras.optimizers.SGD(0.1), "adam": keras.optimizers.Adam()}[name]
