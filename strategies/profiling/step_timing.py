"""Measurement of the input and the exchanges of training steps."""

from __future__ import annotations

import weakref
from typing import Any

from strategies.profiling.spans import record_spans

_models: weakref.WeakSet[Any] = weakref.WeakSet()


def measure_steps(model: Any) -> None:
    """Makes a model's training steps record spans; a step traced without them is traced again.

    Args:
      model: a model of Keras 3 or tf_keras, before `fit` makes its train function.
    """
    record_spans()  # never turned off: all steps traced from now on are measured
    if model not in _models:
        _models.add(model)
        model.train_function = None
