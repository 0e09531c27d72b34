"""Checks that models, optimizers and metrics were created in the scope of their strategy."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from strategies.collectives import Collectives
from strategies.compat.keras import (
    TRAIN_STEP,
    keras_backend,
    metrics_of,
    optimizer_variables,
    step_of,
    tensorflow_variable,
    variables_of,
)
from strategies.compat.tensorflow import ResourceVariable
from strategies.data.input_consistency import first_different
from strategies.diagnostics.consistency import check_same_call
from strategies.variables.row_variable import RowVariable

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
        "Keras must use the TensorFlow backend under a strategy; with another backend each worker "
        f"would train its own model. Received: {type(strategy).__name__}, and Keras with the "
        f"backend {backend!r}. Set KERAS_BACKEND=tensorflow in the environment, or "
        '"backend": "tensorflow" in Keras\'s configuration file (~/.keras/keras.json).'
    )


def is_outside(variable: Any) -> bool:
    """Returns whether a variable was created outside of every strategy's scope.

    >>> is_outside(tf.Variable(1.0))
    True
    """
    inner = tensorflow_variable(variable)
    is_plain = isinstance(inner, ResourceVariable) and not isinstance(inner, RowVariable)
    return is_plain and not hasattr(inner, "_distributed_container")


def check_updated(variable: Any, strategy: tf.distribute.Strategy) -> None:
    """Checks that a variable to be updated under a strategy was created in a scope.

    Raises:
      ValueError: if it was created outside of every scope.
    """
    if is_outside(variable):
        raise _created_outside_error([variable], strategy)


def check_step(fn: Callable[..., Any], strategy: tf.distribute.Strategy, is_summed: bool) -> None:
    """Checks that the variables and metrics of a step's model were created in the scope.

    Args:
      fn: the function passed to `strategy.run`; ignored if it is not a step of a Keras model.
      strategy: the strategy that runs it.
      is_summed: whether metrics are summed over workers. A metric that was created outside of the
        scope would cover only this worker's examples.

    Raises:
      ValueError: if a variable was created outside of the scope.
    """
    model, step = step_of(fn)
    if model is None:
        return
    # Variables that the step creates are in the scope; check_updated covers those created earlier.
    trained = variables_of(model, "trainable_variables") if step == TRAIN_STEP else ()
    measured = [v for metric in metrics_of(model) for v in metric.variables] if is_summed else ()
    outside = [variable for variable in (*trained, *measured) if is_outside(variable)]
    if outside:
        raise _created_outside_error(outside, strategy)


def check_same_outside(model: Any, collectives: Collectives) -> None:
    """Checks that weights created outside of the scope are the same on all workers.

    A frozen layer, such as a teacher, may be created outside of the scope, and so may a model that
    only predicts. All workers must call this when they distribute a dataset.

    Args:
      model: the model whose method distributes the dataset; None if there is none.
      collectives: the workers; waits for all of them.

    Raises:
      ValueError: if the weights differ, or if the workers are in different calls; on all workers.
    """
    weights = [] if model is None else variables_of(model, "weights")
    outside = [w for w in weights if is_outside(w) and tf.as_dtype(w.dtype).is_floating]
    detail = f"{len(outside)} weights from outside of the scope" if outside else ""
    check_same_call(collectives, "distribution of a dataset", detail)
    if not outside or collectives.size == 1 or not tf.executing_eagerly():
        return
    values = [tf.convert_to_tensor(tensorflow_variable(weight)) for weight in outside]
    values = [tf.reshape(value, [1]) if value.shape.rank == 0 else value for value in values]
    other = first_different(values, collectives)
    if other is not None:
        raise ValueError(
            "A layer or model created outside of strategy.scope() must have the same weights on "
            f"all workers. Received: {_format_names(outside)}, whose values on worker {other} "
            "differ from those on worker 0. Create it inside `with strategy.scope():`, or load the "
            "same weights on all workers."
        )


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
        raise _created_outside_error(list(filter(is_outside, variables)), strategy) from error


def _format_names(variables: Sequence[Any]) -> str:
    names = [getattr(variable, "path", variable.name) for variable in variables]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(repr, names[:_NAMED])) + more


def _created_outside_error(
    variables: Sequence[Any], strategy: tf.distribute.Strategy
) -> ValueError:
    names = _format_names(variables) if variables else "an optimizer"
    return ValueError(
        "The model, optimizer and metrics must be created inside strategy.scope(). Received: "
        f"{names} created outside of the scope of {type(strategy).__name__}. Create and compile "
        "the model inside `with strategy.scope():`."
    )
