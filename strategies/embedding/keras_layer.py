"""The embedding layer for Keras 3."""

from __future__ import annotations

from typing import Any

import keras

from strategies.embedding.layer import EmbeddingLayer


@keras.saving.register_keras_serializable(package="strategies")
class DistributedEmbedding(EmbeddingLayer, keras.layers.Layer):
    """Turns ids into dense vectors that are trained with the model: any int64, any number of them.

    It is used as `keras.layers.Embedding` is, and needs no size. Where training is distributed,
    each worker, or each parameter server, has its part of the rows, and the ids, rows and
    gradients travel. A step of training costs what it touches: the optimizer updates the rows of
    the ids that came, and no others.

    >>> import tensorflow as tf
    >>> layer = DistributedEmbedding(2, combiner="sum", embeddings_initializer="ones")
    >>> layer(tf.ragged.constant([[5, -5], [], [2**63 - 1]], dtype=tf.int64)).numpy().tolist()
    [[2.0, 2.0], [0.0, 0.0], [1.0, 1.0]]

    * An id gets its row when it comes in training: in `fit`, or where a tape records, unless
      `training` says otherwise. Elsewhere it adds nothing.
    * A row's first value depends on the seed, the table and the id alone.
    * Optimizers that work element by element are run on the touched rows: SGD, Adagrad, Adam,
      RMSprop, Adadelta, Ftrl, Lion and their like. Momentum and decay of a row that is not
      touched wait until it is. Clipping by norm is of what a worker has. Other optimizers,
      `use_ema` and `gradient_accumulation_steps` are refused.
    * In `get_weights` one row of numbers next to zero stands for the rows, which stay in memory
      for as long as it does, 4 GiB of them on a worker at most; `set_weights` brings them back,
      as `EarlyStopping(restore_best_weights=True)` does. `rows` returns them.
    * Rows are float32. `embeddings_regularizer`, `embeddings_constraint`, `weights` and other
      arguments of `keras.layers.Embedding` that are of a whole table are refused.

    Args:
      output_dim: width of a row.
      input_dim: number of ids that may have a row, on all workers together; None is any number.
      combiner: None returns each id's row, [..., output_dim]; "sum", "mean" or "sqrtn" put the rows
        of the last dimension, of ragged or sparse inputs too, together to one.
      embeddings_initializer: initializer of the rows, one whose numbers do not depend on the
        shape.
      features: in place of the arguments above: a dictionary of `FeatureConfig`; the layer is
        called with a dictionary of ids and returns one.
      admission: when an id gets a row; None is at its first occurrence.
      eviction: which rows `evict` removes.
      overflow: handling of ids beyond `input_dim`: "error" ends training, "share" gives all of
        them one row that they share.
      optimizer: trains the rows in place of the model's optimizer.
      placement: "sharded", or "replicated" for a small table that all workers have a copy of.
      mask_zero: whether id 0 is no id: masked without a combiner, left out with one.
      unseen: the values of an id that has no row: its "initial" ones, or "zeros".
      seed: seed of the initial values.

    Raises:
      ValueError: if an argument is invalid, or under another package's strategy.
    """

    initializers = keras.initializers
    optimizers = keras.optimizers
    not_equal = staticmethod(keras.ops.not_equal)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the output's spec by tracing `call`: ids may be ragged, sparse or in features."""
        # Not from `compute_output_shape`, as Keras's layers do that have one.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)
