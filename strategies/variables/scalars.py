"""Variables with a copy on each replica that can be converted to Python numbers."""

from __future__ import annotations

from typing import Any

from strategies.compat.tensorflow import MirroredVariable as StockMirroredVariable


class NumberMixin:
    """Conversion of scalar variables to Python numbers, which only `tf.Variable` itself has.

    Programs write `float(model.optimizer.learning_rate)` and `int(model.optimizer.iterations)`.
    """

    numpy: Any

    def __float__(self) -> float:
        return float(self.numpy())

    def __int__(self) -> int:
        return int(self.numpy())

    def __complex__(self) -> complex:
        return complex(self.numpy())


class MirroredVariable(NumberMixin, StockMirroredVariable):
    """A variable with the same value on every replica.

    It has the name of TensorFlow's class, because programs check `type(variable).__name__`.
    """
