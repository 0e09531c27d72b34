"""Keras 3's `LossScaleOptimizer`, importable from here for scripts and saved models.

Under a strategy of this package, Keras 3's own LossScaleOptimizer, which `compile` creates, skips a
step on all replicas or on none: see `strategies.compat.keras_loss_scaling.agree_on_overflow`.
"""

from keras.optimizers import LossScaleOptimizer

__all__ = ["LossScaleOptimizer"]
