"""Assumptions about Keras's internals that concern one step: its seeds, its logs, and building."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from strategies.compat.call_stack import locals_of
from strategies.compat.keras import TEST_STEP, TRAIN_STEP, step_of
from strategies.compat.tensorflow import autograph_artifact, convert_with_autograph

_SYMBOLIC_BUILD = "_maybe_symbolic_build"
_SEEDS_MODULE, _SEEDS, _GENERATOR = "tf_keras.src.backend", "_SEED_GENERATOR", "generator"


def is_summing_logs(fn: Callable[..., Any]) -> bool:
    """Returns whether a function passed to `strategy.run` is a step whose logs tf_keras sums."""
    if step_of(fn)[1] not in (TRAIN_STEP, TEST_STEP):
        return False
    return getattr(inspect.unwrap(fn), "__module__", "").startswith("tf_keras.")


def with_callers_seeds(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that draws tf_keras's seeds from the generator of the calling thread.

    `tf_keras.utils.set_random_seed` gives the calling thread a generator of seeds. Replicas run in
    their own threads, where layers that a step builds would draw from Python's `random` instead and
    get other initial values than with a single replica.

    Args:
      fn: a function that replicas run. It is returned unchanged if there is no such generator.
    """
    seeds = getattr(sys.modules.get(_SEEDS_MODULE), _SEEDS, None)
    generator = getattr(seeds, _GENERATOR, None)
    if generator is None:
        return fn
    fn = fn if tf.executing_eagerly() else convert_with_autograph(fn)

    def draw_as_caller(*args: Any, **kwargs: Any) -> Any:
        setattr(seeds, _GENERATOR, generator)
        return fn(*args, **kwargs)

    return autograph_artifact(draw_as_caller)


def ragged_to_build() -> tuple[Any, Any]:
    """Returns the model that Keras 3 is about to build and the batch, if it has ragged tensors.

    Under a strategy, `fit` and `evaluate` build a model, its metrics and its loss with placeholders
    of the shapes of a batch. The placeholders are dense, so a model with ragged inputs cannot be
    called with them. Returns (None, None) if the batch has no ragged tensors.
    """
    values = locals_of(_SYMBOLIC_BUILD)
    batch = values.get("data_batch")
    is_ragged = any(isinstance(each, tf.RaggedTensor) for each in tf.nest.flatten(batch))
    return (values["self"], batch) if is_ragged else (None, None)


def build_with_ragged(model: Any, batch: Any) -> None:
    """Builds a Keras 3 model, its metrics and its loss as Keras does, but with ragged placeholders.

    Parts that are already built are not built again.

    Args:
      model: the model; compiled.
      batch: a batch of its data.
    """
    keras = sys.modules["keras"]
    parts = (model._compile_metrics, model._compile_loss)
    metrics, loss = (part is not None and not part.built for part in parts)
    if not metrics and not loss and all(layer.built for layer in model._flatten_layers()):
        return

    def build() -> Any:
        placeholders = tf.nest.map_structure(_placeholder, batch)
        x, y, weights = keras.utils.unpack_x_y_sample_weight(placeholders)
        predictions = model(x, training=False)
        if metrics:
            model.compute_metrics(x, y, predictions, sample_weight=weights)
        if loss:
            model._compute_loss(x, y, predictions, sample_weight=weights, training=False)

    sys.modules["keras.src.backend"].compute_output_spec(build)


def _placeholder(value: Any) -> Any:
    placeholders = tf.compat.v1
    if isinstance(value, tf.RaggedTensor):
        inner = value.flat_values.shape[1:]
        return placeholders.ragged.placeholder(value.dtype, value.ragged_rank, inner)
    shape = [None, *value.shape[1:]] if value.shape.rank else value.shape
    if isinstance(value, tf.SparseTensor):
        return placeholders.sparse_placeholder(value.dtype, shape)
    return placeholders.placeholder(value.dtype, shape)


def metrics_of_own_step(fn: Callable[..., Any], results: Any) -> list[Any]:
    """Returns the metrics of a Keras 3 model whose own step returns other logs than their results.

    Args:
      fn: a function passed to `strategy.run`. The list is empty unless it is a training or test
        step that a subclass defines.
      results: the result of the step.
    """
    model, step = step_of(fn)
    base = getattr(sys.modules.get("keras"), "Model", ())
    if step not in (TRAIN_STEP, TEST_STEP) or not isinstance(model, base):
        return []
    if getattr(type(model), step) is getattr(base, step):
        return []
    metrics = [each for metric in model.metrics for each in getattr(metric, "metrics", [metric])]
    if isinstance(results, Mapping) and {*results} == {metric.name for metric in metrics}:
        return []
    return metrics
