"""The embedding layer for tf_keras."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras

from strategies.embedding.layer import EmbeddingLayer


@tf_keras.saving.register_keras_serializable(package="strategies")
class DistributedEmbedding(EmbeddingLayer, tf_keras.layers.Layer):
    """Version of `strategies.DistributedEmbedding` for tf_keras.

    >>> DistributedEmbedding(3, combiner="mean").get_config()["combiner"]
    'mean'

    Args:
      *args: positional arguments of `strategies.DistributedEmbedding`.
      **kwargs: keyword arguments of `strategies.DistributedEmbedding`.
    """

    initializers = tf_keras.initializers
    optimizers = tf_keras.optimizers
    not_equal = staticmethod(tf.not_equal)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments as plain values."""
        # tf_keras saves the regularizer only for layers that take it as a named argument.
        regularizer = tf_keras.regularizers.serialize(self.activity_regularizer)
        return {**super().get_config(), "activity_regularizer": regularizer}

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        # tf_keras's `export` looks for tables among a checkpoint's children.
        return {**super()._trackable_children(save_type, **kwargs), **self._export()}

    @property
    def _tracking_metadata(self) -> str:
        # Only tf_keras's `model.save` reads it, to save what `load_model` creates layers from.
        raise ValueError(
            "tf_keras cannot restore an embedding's tables from a SavedModel. Received: model.save "
            f"to a SavedModel, of a model with {self.name!r}. Save to a path that ends in "
            "'.keras', which load_model restores; to serve the model, call model.export."
        )
