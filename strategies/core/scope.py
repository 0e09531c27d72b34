"""Checks that models, optimizers and metrics were created in the scope of their strategy."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

from strategies._keras import (
    TRAIN_STEP,
    keras_backend,
    metrics_of,
    optimizer_variables,
    step_of,
    tensorflow_variable,
    trained_variables,
)
from strategies._tensorflow import ResourceVariable
from strategies.variables.sparse_variable import SparseVariable

# TensorFlow's errors for an optimizer of another strategy, or of none.
_NESTED_MESSAGES = (
    "Must not nest tf.distribute.Strategy",
    "Mixing different tf.distribute.Strategy",
)
_NAMED = 3  # variables in a message


def check_backend(strategy: tf.distribute.Strategy) -> None:
    """Checks that Keras 3, if it is loaded, has the TensorFlow backend.

    Raises:
      RuntimeError: if it has another backend, and tf_keras is not loaded.
    """
    backend = keras_backend()
    if backend in (None, "tensorflow") or "tf_keras" in sys.modules:
        return
    raise RuntimeError(
        "Strategies distribute what computes with TensorFlow; a model of another backend of Keras "
        f"would train on each worker apart. Received: {type(strategy).__name__}, and Keras with "
        f"the backend {backend!r}. Set KERAS_BACKEND=tensorflow in the environment, or "
        '"backend": "tensorflow" in Keras\'s configuration file (~/.keras/keras.json).'
    )


def is_outside(variable: Any) -> bool:
    """Returns whether a variable was created outside of every strategy's scope.

    >>> is_outside(tf.Variable(1.0))
    True
    """
    inner = tensorflow_variable(variable)
    is_plain = isinstance(inner, ResourceVariable) and not isinstance(inner, SparseVariable)
    return is_plain and not hasattr(inner, "_distributed_container")


def check_updated(variable: Any, strategy: tf.distribute.Strategy) -> None:
    """Checks that a variable to be updated under a strategy was created in a scope.

    Raises:
      ValueError: if it was created outside of every scope.
    """
    if is_outside(variable):
        raise _created_outside([variable], strategy)


def check_step(fn: Callable[..., Any], strategy: tf.distribute.Strategy, is_summed: bool) -> None:
    """Checks that the variables and metrics of a step's model were created in the scope.

    Args:
      fn: the function given to `strategy.run`; ignored if it is not a step of a Keras model.
      strategy: the strategy that runs it.
      is_summed: whether metrics are summed over workers. A metric that was created outside of the
        scope would cover only this worker's rows.

    Raises:
      ValueError: if a variable was created outside of the scope.
    """
    model, step = step_of(fn)
    if model is None:
        return
    # Variables built in the step are in the scope; check_updated covers layers built before.
    trained = trained_variables(model) if step == TRAIN_STEP else ()
    measured = [v for metric in metrics_of(model) for v in metric.variables] if is_summed else ()
    outside = [variable for variable in (*trained, *measured) if is_outside(variable)]
    if outside:
        raise _created_outside(outside, strategy)


@contextlib.contextmanager
def explain_mixed_strategies(
    fn: Callable[..., Any], strategy: tf.distribute.Strategy
) -> Iterator[None]:
    """Replaces TensorFlow's errors about two strategies in one step with an explanation.

    Raises:
      ValueError: if an optimizer or a model of the step was created outside of the scope.
    """
    try:
        yield
    except RuntimeError as error:
        if not any(words in str(error) for words in _NESTED_MESSAGES):
            raise
        model, _ = step_of(fn)
        variables = [] if model is None else optimizer_variables(model)
        raise _created_outside(list(filter(is_outside, variables)), strategy) from error


def _created_outside(variables: Iterable[Any], strategy: tf.distribute.Strategy) -> ValueError:
    names = [getattr(variable, "path", variable.name) for variable in variables]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    found = ", ".join(map(repr, names[:_NAMED])) + more
    what = f"{found}, created outside of it" if names else "an optimizer created outside of it"
    return ValueError(
        "What trains under a strategy is created in its scope: the model, the optimizer and the "
        "metrics; else each worker would train its own. Received, under "
        f"{type(strategy).__name__}: {what}. Create and compile the model inside "
        "`with strategy.scope():`."
    )
