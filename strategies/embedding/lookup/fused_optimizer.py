"""Optimizer of a single table, fused into the backward pass."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from strategies.variables.sparse_variable import SparseVariable


class FusedOptimizer:
    """Runs a table's own optimizer on its rows, within the backward pass.

    The model's optimizer is not told of these rows, so it can be any. When the rows' gradient is
    known, which is when all of the model that comes after them has its own, this one's step runs.
    What Keras takes the gradient of in their place is a weight of one number, the lead.

    Args:
      optimizer: optimizer of Keras 3 or tf_keras, of this table alone.
      variable: variable of the table.
    """

    def __init__(self, optimizer: Any, variable: SparseVariable):
        self._optimizer = optimizer
        self._weight: Any = variable
        self._lead: Any = None

    def build(self, weight: Any, lead: Any) -> None:
        """Makes the optimizer's variables.

        Args:
          weight: variable of the table, as the weight of a layer.
          lead: the weight that Keras takes the gradient of.
        """
        self._weight, self._lead = weight, lead
        self._optimizer.build([weight])

    def token(self) -> tf.Tensor:
        """Returns a tensor whose gradient is the lead's."""
        return tf.convert_to_tensor(self._lead)

    def train_rows(self, gradient: tf.IndexedSlices) -> tf.Tensor:
        """Updates the rows in view; returns the lead's gradient."""
        self._optimizer.apply_gradients([(gradient, self._weight)])
        return tf.zeros([])
