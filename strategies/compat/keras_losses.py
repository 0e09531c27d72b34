"""Assumptions about how Keras 3 and tf_keras compute and log losses.

Tested with Keras 3.15.1 and tf_keras 2.21.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import tensorflow as tf

from strategies.compat.call_stack import frames
from strategies.compat.keras import TEST_STEP, TRAIN_STEP, is_of_keras, step_of, tensorflow_variable

_LOSS = "compute_loss"
# The functions of Keras, tf_keras and TensorFlow that divide a loss by the number of replicas.
_DIVIDE_LOSS = ("scale_loss_for_distribution", "compute_average_loss", "scale_regularization_loss")
# Keras 3's method that divides only regularizers and `add_loss`, not the loss itself.
_DIVIDE_ADDITIONAL = "_aggregate_additional_loss"
_LIBRARIES = ("keras", "tf_keras", "tensorflow")
_DIVIDE = "scale_loss_for_distribution"
_SUM = "sum"
_COMPILED = "compile(loss=...)"


def own_loss_method(fn: Callable[..., Any]) -> tuple[Any, str]:
    """Returns the model of a step function, and the user's method that computes the loss.

    The method is "compile(loss=...)" for losses given to Keras 3 that may return scalars, which
    Keras does not divide. It is "" if Keras divides the loss, or if it does not matter whether the
    loss is divided, as in an evaluation that logs the loss without dividing it.
    """
    model, step = step_of(fn)
    if model is None or step not in (TRAIN_STEP, TEST_STEP):
        return None, ""
    method = getattr(type(model), step)
    if not is_of_keras(method):
        return model, step if step == TRAIN_STEP else ""
    is_new = method.__module__.startswith("keras.")
    if not is_of_keras(type(model).compute_loss):
        return model, _LOSS if is_new or step == TRAIN_STEP else ""
    # Keras 3 divides only the losses that it reduces itself: not scalars that a function returns,
    # and not losses with reduction "none".
    losses = [each for each in tf.nest.flatten(getattr(model, "loss", None)) if each is not None]
    may_be_undivided = any(getattr(loss, "reduction", None) != "sum" for loss in losses)
    return model, _COMPILED if is_new and may_be_undivided else ""


def is_unreduced(model: Any, method: str) -> bool:
    """Returns whether a loss given to Keras 3 has reduction "none", and so a value per example.

    Args:
      model: the model.
      method: the method that `own_loss_method` returns.
    """
    compiled = tf.nest.flatten(getattr(model, "loss", None))
    reductions = [loss.reduction for loss in compiled if hasattr(loss, "reduction")]
    return method == _COMPILED and any(each in (None, "none") for each in reductions)


def is_dividing_loss() -> bool:
    """Returns whether the code that reads `num_replicas_in_sync` may divide a loss by it.

    This is any code outside of TensorFlow and Keras, and their functions that divide losses.

    >>> is_dividing_loss()
    True
    """
    outer = _readers()
    reader, caller = next(outer, None), next(outer, None)
    if reader is None:
        return False
    if reader.f_globals.get("__name__", "").split(".")[0] not in _LIBRARIES:
        return True
    is_additional = caller is not None and caller.f_code.co_name == _DIVIDE_ADDITIONAL
    return reader.f_code.co_name in _DIVIDE_LOSS and not is_additional


def divided_value() -> Any:
    """Returns the loss that Keras is dividing by the number of replicas; None if it divides none.

    Must be called while `num_replicas_in_sync` is read.
    """
    reader = next(_readers(), None)
    if reader is None or reader.f_code.co_name != _DIVIDE:
        return None
    return reader.f_locals[reader.f_code.co_varnames[0]]


def _readers() -> Iterator[FrameType]:
    """Yields the frames of the code that reads the number of replicas, and of its callers."""
    # Properties read it for their caller.
    return (
        frame
        for frame in frames()
        if frame.f_code.co_name != "num_replicas_in_sync"
        and frame.f_globals.get("__name__", "").split(".")[0] != "strategies"
    )


class LoggedLoss(NamedTuple):
    """The loss of one of several outputs, which has a metric of its own.

    Attributes:
      total: the variable of the metric that sums up losses.
      count: the variable of the metric by which the sum is divided.
      is_sum: whether the loss is a sum over examples; if not, it is a mean.
      weight: the weight of the loss in the total loss.
    """

    total: tf.Variable
    count: tf.Variable
    is_sum: bool
    weight: Any


class LossLog:
    """The metrics in which Keras logs the losses of a model.

    Args:
      model: a model of Keras 3 or tf_keras whose total loss Keras logs.
    """

    def __init__(self, model: Any):
        self._model = model
        self._is_keras_3 = hasattr(model, "_compile_loss")

    def needs_correction(self) -> bool:
        """Returns whether logs are wrong if replicas have different numbers of examples."""
        if self._is_keras_3:
            losses = [each.loss for each in self._built] or tf.nest.flatten(self._model.loss)
        else:
            container = self._model.compiled_loss
            losses = tf.nest.flatten(None if container is None else container._user_losses)
        # If the batch size is not known, Keras 3 logs a mean over batches for each of several
        # outputs.
        return any(map(_is_sum, losses)) or self._is_keras_3 and len(losses) > 1

    @property
    def total(self) -> Any:
        """The variable that sums up the total losses."""
        if self._is_keras_3:
            return tensorflow_variable(self._model._loss_tracker.total)
        return tensorflow_variable(self._model.compiled_loss._total_loss_mean.total)

    def losses(self) -> list[LoggedLoss]:
        """Returns the losses of the outputs; none if there is a single output.

        The list is empty before Keras builds the metrics, which it does before it updates them.
        """
        if self._is_keras_3:
            metrics = self._model._compile_loss.metrics
            losses = [(each.loss, each.loss_weights) for each in self._built]
        else:
            container = self._model.compiled_loss
            if not container.built:
                return []
            metrics = container._per_output_metrics
            losses = list(zip(container._losses, container._loss_weights, strict=True))
        return [
            LoggedLoss(
                tensorflow_variable(metric.total),
                tensorflow_variable(metric.count),
                _is_sum(loss),
                1.0 if weight is None else weight,
            )
            for metric, (loss, weight) in zip(metrics, losses, strict=False)
            if metric is not None
        ]

    def is_weighted(self) -> bool:
        """Returns whether the running update of an output's metric is weighted by examples."""
        if not self._is_keras_3:
            return True
        updates = (frame for frame in frames() if frame.f_code.co_name == "update_state")
        update: FrameType | None = next(updates, None)
        return update is None or update.f_locals.get("sample_weight") is not None

    @property
    def _built(self) -> list[Any]:
        compiled = self._model._compile_loss
        return compiled._flat_losses if getattr(compiled, "built", False) else []


def loss_log_of(fn: Callable[..., Any]) -> LossLog | None:
    """Returns the log of the losses of a step function; None if it needs no correction.

    Returns None also if a Keras 3 model overrides `train_step` or `compute_loss`, and so logs its
    losses itself. In tf_keras, the object that computes the losses logs them in any case.
    """
    model, step = step_of(fn)
    if model is None or step not in (TRAIN_STEP, TEST_STEP):
        return None
    if hasattr(model, "_compile_loss"):
        methods = getattr(type(model), step), type(model).compute_loss
        if model._compile_loss is None or not all(map(is_of_keras, methods)):
            return None
    elif getattr(model, "compiled_loss", None) is None:
        return None
    log = LossLog(model)
    return log if log.needs_correction() else None


def _is_sum(loss: Any) -> bool:
    return getattr(loss, "reduction", None) == _SUM
