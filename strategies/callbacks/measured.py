"""Train functions whose input and exchanges are measured."""

from __future__ import annotations

import weakref
from typing import Any

from strategies.collectives.health.spans import record_spans

_models: weakref.WeakSet[Any] = weakref.WeakSet()


def measure_steps(model: Any) -> None:
    """Has a model's steps record their spans; a step that was traced without is traced anew.

    Args:
      model: Keras 3's or tf_keras's, before `fit` makes its train function.
    """
    record_spans()  # for good: what is traced from now on is measured
    if model not in _models:
        _models.add(model)
        model.train_function = None
