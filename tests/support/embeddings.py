"""DistributedEmbedding in the programs of tests/distributed, and what it is compared with."""

from __future__ import annotations

import importlib
from types import ModuleType

import numpy as np
import tensorflow as tf

from strategies.collectives.workers import collectives_of


def embedding_of(api: str) -> type:
    """Returns the DistributedEmbedding of "keras" or "tf_keras"."""
    return importlib.import_module(f"strategies.embedding.{api}_layer").DistributedEmbedding


def one_hot_embedding(keras: ModuleType, rows: int, width: int) -> object:
    """Returns a layer that looks up rows by their number, and whose gradient is dense."""

    class OneHot(keras.layers.Layer):
        def build(self, shape):
            self.table = self.add_weight(name="t", shape=[rows, width], initializer="zeros")

        def call(self, ids):
            return tf.matmul(tf.one_hot(ids, rows), tf.convert_to_tensor(self.table))

    return OneHot()


def all_rows(
    strategy: tf.distribute.Strategy, layer: object, table: str | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids of an embedding's table and their rows, of all workers, in order."""
    workers = collectives_of(strategy)
    ids, rows = (workers.all_gather(tf.constant(each)).numpy() for each in layer.rows(table))
    order = np.argsort(ids)
    return ids[order], rows[order]
