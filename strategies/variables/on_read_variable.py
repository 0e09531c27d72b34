"""Variables with a value on each replica that are reduced when read, such as metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.compat.keras import RNN_STATE
from strategies.compat.tensorflow import SyncOnReadVariable
from strategies.variables.scalars import NumberMixin


class OnReadVariable(NumberMixin, SyncOnReadVariable):
    """Sync-on-read variable to which arrays of a file can be assigned.

    TensorFlow divides a sum by the number of replicas before it converts it to a tensor, which an
    HDF5 dataset does not support. tf_keras assigns those to metrics in `load_weights`.
    """

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Sets the value; in a replica, that of the replica."""
        # What TensorFlow can convert may have no value yet, in a function that is being traced.
        is_convertible = tf.is_tensor(value) or hasattr(value, "__tf_tensor__")
        if hasattr(value, "__array__") and not is_convertible:
            value = np.asarray(value)
        return super().assign(value, *args, **kwargs)


class ExamplesVariable(OnReadVariable):
    """Sync-on-read variable that a replica without examples in a step leaves unchanged.

    The mean of no examples is NaN and would stay in a metric until the end of the epoch; see
    [Note: replicas without examples] in reduction/cross_device_ops.py. Zeros are always assigned,
    because they reset metrics. Values that Keras adds to the metric of a loss are corrected here;
    see [Note: logged losses] in core/loss_logs.py.
    """

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Sets the value; in a replica, that of the replica."""
        # Keras 3 adds to a variable by assigning the sum.
        value = self._with_correction(
            value, lambda: tf.convert_to_tensor(value, self.dtype) - self.value()
        )
        has_examples = self._has_examples()
        if has_examples is not None:
            value = tf.convert_to_tensor(value, self.dtype)
            value = tf.where(has_examples | (value == 0), value, self.value())
        return super().assign(value, *args, **kwargs)

    def assign_add(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Adds to the value; in a replica, to that of the replica."""
        value = self._with_correction(value, lambda: tf.convert_to_tensor(value, self.dtype))
        return super().assign_add(self._of_examples(value), *args, **kwargs)

    def _with_correction(self, value: Any, added: Callable[[], tf.Tensor]) -> Any:
        logs = self.distribute_strategy.extended.loss_logs
        correction = logs.correction(self, added)
        return value if correction is None else tf.convert_to_tensor(value, self.dtype) + correction

    def assign_sub(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Subtracts from the value; in a replica, from that of the replica."""
        return super().assign_sub(self._of_examples(value), *args, **kwargs)

    def _of_examples(self, value: Any) -> Any:
        has_examples = self._has_examples()
        if has_examples is None:
            return value
        value = tf.convert_to_tensor(value, self.dtype)
        return tf.where(has_examples, value, tf.zeros_like(value))

    def _has_examples(self) -> tf.Tensor | None:
        """Returns whether the calling replica has examples; None if always, or if unknown."""
        if not self.dtype.is_floating or not self.shape.is_fully_defined():
            return None  # the variable holds no means
        strategy = self.distribute_strategy
        context = tf.distribute.get_replica_context()
        if context is None or context.strategy is not strategy:
            return None
        if strategy.extended.loss_logs.counts_all(self):
            return None
        weight = strategy.extended.input_weight()
        is_constant = weight is None or tf.get_static_value(weight) == 1
        return None if is_constant else weight > 0


def keep_state_per_replica(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns creation arguments with which each replica keeps the RNN states of its own examples.

    A stateful RNN (`stateful=True`) starts each batch from the final states of the same examples in
    the previous batch. A mean over replicas would mix the sequences of different examples. (RNNs of
    tf_keras cannot be stateful under a strategy.) The arguments of all other variables are returned
    unchanged.

    Args:
      kwargs: the arguments that the variable is created with.
    """
    if kwargs.get("name") != RNN_STATE:
        return {**kwargs}
    return {
        **kwargs,
        "trainable": False,
        "synchronization": tf.VariableSynchronization.ON_READ,
        "aggregation": tf.VariableAggregation.ONLY_FIRST_REPLICA,
    }
