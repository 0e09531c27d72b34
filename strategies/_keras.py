"""What this package knows of the insides of Keras.

Checked on Keras 3.15.1 and tf_keras 2.21.0.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

_TRAINS = "train_step"
_STEPS = (_TRAINS, "test_step", "predict_step")


def model_of(fn: Callable) -> tuple[Any, bool]:
    """Returns the model whose step `fn` is, and whether it trains; None if `fn` is none.

    Keras 3 gives `strategy.run` the model's bound method, `model.train_step`; tf_keras a function
    `run_step` that calls that of `model`, a variable around it.
    """
    fn = inspect.unwrap(fn)
    model = getattr(fn, "__self__", None)
    if model is not None and getattr(fn, "__name__", "") in _STEPS:
        return _if_model(model), fn.__name__ == _TRAINS
    code = getattr(fn, "__code__", None)
    if code is None or not getattr(fn, "__module__", "").startswith("tf_keras."):
        return None, False
    around = dict(zip(code.co_freevars, fn.__closure__ or (), strict=True))
    model = around["model"].cell_contents if "model" in around else None
    return _if_model(model), _TRAINS in code.co_names


def trained_variables(model: Any) -> list[Any]:
    """Returns the variables that a model trains; none if it is not built yet."""
    try:
        return list(model.trainable_variables)
    except ValueError:  # tf_keras's, of a model without variables so far
        return []


def metrics_of(model: Any) -> list[Any]:
    """Returns the metrics of a model; with tf_keras those given to `compile` before it is built."""
    given = getattr(getattr(model, "compiled_metrics", None), "_user_metrics", None)
    objects = [metric for metric in tf.nest.flatten(given) if hasattr(metric, "variables")]
    return [*model.metrics, *objects]


def _if_model(value: Any) -> Any:
    is_model = all(hasattr(type(value), name) for name in ("trainable_variables", "metrics"))
    return value if is_model else None
