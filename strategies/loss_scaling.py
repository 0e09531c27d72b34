"""Loss scaling for mixed_float16 on several workers."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from strategies.extended import AGREED_LOSS_SCALE, KERAS_LOSS_SCALE


@keras.saving.register_keras_serializable(package="strategies")
class LossScaleOptimizer(keras.optimizers.LossScaleOptimizer):
    """Keras 3's optimizer of that name, whose replicas skip a step all together or not at all.

    Under `mixed_float16` gradients may overflow; then the step is skipped and the loss scaled
    less. Keras's own optimizer decides that on each worker from the gradients of its own rows:
    those without overflow would wait in the reduction for the ones that skip it. Here all
    replicas look at everybody's verdict, which costs one small reduction a step.

    >>> optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=1024.0)
    >>> optimizer.initial_scale
    1024.0

    Args:
      inner_optimizer: the optimizer that makes the update.
      **options: as of `keras.optimizers.LossScaleOptimizer`.
    """

    def add_variable(self, *args: Any, **kwargs: Any) -> Any:
        """Adds a variable; the scale under a name that tells it from Keras's own."""
        if kwargs.get("name") == KERAS_LOSS_SCALE:
            kwargs["name"] = AGREED_LOSS_SCALE
        return super().add_variable(*args, **kwargs)

    def check_finite(self, grads: Any) -> Any:
        """Returns whether no gradient of any replica has overflown."""
        finite = super().check_finite(grads)
        context = tf.distribute.get_replica_context()
        if context is None:
            return finite
        overflown = 1.0 - tf.cast(finite, tf.float32)
        return context.all_reduce(tf.distribute.ReduceOp.SUM, overflown) == 0
