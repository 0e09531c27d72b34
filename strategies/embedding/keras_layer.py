"""The embedding layer for Keras 3."""

from __future__ import annotations

from typing import Any

import keras

from strategies.embedding.layer import EmbeddingLayer


@keras.saving.register_keras_serializable(package="strategies")
class DistributedEmbedding(EmbeddingLayer, keras.layers.Layer):
    """Embedding layer for an unbounded number of int64 ids, sharded in distributed training.

    Use it like `keras.layers.Embedding`; the size of the vocabulary is optional. In distributed
    training, each worker or parameter server stores a shard of the rows, and ids, rows and
    gradients are exchanged. The cost of a training step depends on the rows it uses, not on the
    size of the table: the optimizer updates only the rows of the ids in the batch.

    >>> import tensorflow as tf
    >>> layer = DistributedEmbedding(2, combiner="sum", embeddings_initializer="ones")
    >>> ids = tf.ragged.constant([[5, -5], [], [2**63 - 1]], dtype=tf.int64)
    >>> layer(ids).numpy().tolist()
    [[2.0, 2.0], [0.0, 0.0], [1.0, 1.0]]

    * An id gets a row when it first occurs in training: in `fit`, or under a `tf.GradientTape`,
      unless `training` says otherwise. Lookups outside of training create no rows.
    * The initial value of a row depends only on the seed, the table's name and the id.
    * Element-wise optimizers update only the rows of the batch: SGD, Adagrad, Adam, RMSprop,
      Adadelta, Ftrl, Lion and similar ones. Momentum and decay of the other rows are not applied
      until those rows are used again. Clipping by norm uses the norm of the worker's own part of
      the gradient. Other optimizers, `use_ema` and `gradient_accumulation_steps` raise an error.
    * `get_weights` returns a token for each weight: an array with a single row of numbers close to
      zero. The rows stay in memory as long as the token does, at most 4 GiB per weight on each
      worker. `set_weights` restores them, as in `EarlyStopping(restore_best_weights=True)`. To get
      the rows themselves, call `rows`.
    * Rows are trained and saved as float32. Arguments of `keras.layers.Embedding` that apply to a
      whole table, such as `embeddings_regularizer`, `embeddings_constraint` and `weights`, raise an
      error.

    Args:
      output_dim: width of a row.
      input_dim: maximum number of ids with a row, over all workers; None sets no limit.
      combiner: None returns one row for each id, [..., output_dim]; "sum", "mean" or "sqrtn"
        combines the rows along the last dimension of the ids, which may be ragged or sparse.
      embeddings_initializer: initializer of the rows. Its values must not depend on the shape. Its
        seed, if it has one, takes the place of `seed`.
      features: dictionary of `FeatureConfig`, which replaces the arguments that configure a single
        table. The layer is then called with a dictionary of ids and returns a dictionary.
      admission: rule that gives an id a row; None creates the row at the first occurrence.
      eviction: rule for the rows to remove; None selects none.
      overflow: handling of ids beyond `input_dim`: "error" ends training with an error, "share"
        maps all of them to one shared row, "evict" removes the rows that the `policy` of `eviction`
        ranks first, a batch of them at a time.
      optimizer: optimizer that trains the rows instead of the model's optimizer.
      l2: coefficient of an L2 penalty on the rows that a step trains; see `TableConfig`.
      placement: "sharded", or "replicated" for a small table of which each worker has a copy.
      row_dtype: dtype in which rows are stored, "float32" or "bfloat16"; see `TableConfig`.
      slot_dtype: dtype in which the optimizer's slot variables of the rows are stored.
      exchange_dtype: dtype in which rows and gradients are exchanged.
      mask_zero: whether id 0 is padding: masked without a combiner, skipped with one.
      unseen: values of an id without a row: "initial" returns its initial values, "zeros" zeros.
      seed: seed of the initial values.

    Raises:
      ValueError: if an argument is invalid, or the layer is created under a strategy of another
        package.
    """

    initializers = keras.initializers
    optimizers = keras.optimizers
    not_equal = staticmethod(keras.ops.not_equal)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the output's spec by tracing `call`, which handles ragged and sparse ids."""
        # Keras would use `compute_output_shape`, which only describes dense ids.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)
