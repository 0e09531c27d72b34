"""A table's own optimizer, fused into the backward pass."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from strategies.variables.row_variable import RowVariable


class FusedOptimizer:
    """Runs a table's own optimizer on its rows within the backward pass.

    The model's optimizer does not see these rows, so it can be any optimizer. The table's optimizer
    runs as soon as the backward pass has computed the rows' gradient, in the gate described in
    [Note: the gradient of a lookup] in group_lookup.py. Instead of the rows, Keras differentiates
    the loss with respect to a scalar weight, the lead: without it, no tape would record the lookup,
    and the backward pass would not get here.

    Args:
      optimizer: optimizer of Keras 3 or tf_keras for this table only.
      variable: variable of the table.
    """

    def __init__(self, optimizer: Any, variable: RowVariable):
        self._optimizer = optimizer
        self._weight: Any = variable
        self._lead: Any = None

    def build(self, weight: Any, lead: Any) -> None:
        """Creates the optimizer's variables.

        Args:
          weight: layer weight of the table's variable.
          lead: weight that Keras differentiates with respect to.
        """
        self._weight, self._lead = weight, lead
        self._optimizer.build([weight])

    def token(self) -> tf.Tensor:
        """Returns a tensor that depends on the lead, so that tapes record lookups."""
        return tf.convert_to_tensor(self._lead)

    def train_rows(self, gradient: tf.IndexedSlices) -> tf.Tensor:
        """Updates the rows in view; returns the lead's gradient."""
        self._optimizer.apply_gradients([(gradient, self._weight)])
        return tf.zeros([])
