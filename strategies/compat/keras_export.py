"""Assumptions about how Keras exports a model for serving.

`model.export` creates an export archive, but does not let others add signatures to it. Tested with
Keras 3.15.1 and tf_keras 2.21.0.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

_SERVE = "serve"


def is_model(value: Any) -> bool:
    """Returns whether a value is a model of Keras 3 or tf_keras.

    >>> import keras
    >>> is_model(keras.Sequential()), is_model(keras.layers.Dense(1))
    (True, False)
    """
    libraries = (sys.modules.get(name) for name in ("keras", "tf_keras"))
    return any(library is not None and isinstance(value, library.Model) for library in libraries)


def export_with(
    model: Any,
    path: str,
    functions: Sequence[tuple[str, Callable[..., Any], Any]],
    variables: Sequence[tf.Variable],
    input_signature: Any = None,
) -> None:
    """Exports a model as `model.export` does, with further signatures and variables.

    Args:
      model: a model that is built.
      path: the path of the SavedModel.
      functions: the names of the signatures, their functions, and the specifications of their
        arguments; None for the last if the function is a `tf.function` that has been traced.
      variables: variables of these functions that are not the model's.
      input_signature: specification of the model's inputs; None uses those that Keras determines.

    Raises:
      ValueError: if the model is not built.
    """
    of_model, options = _keras_signature, {"verbose": False}
    library: Any = sys.modules["keras"]
    if not isinstance(model, library.Model):
        library, of_model, options = sys.modules["tf_keras"], _tf_keras_signature, {}
    archive = library.export.ExportArchive()
    archive.track(model)
    inputs = of_model(model) if input_signature is None else input_signature
    archive.add_endpoint(_SERVE, model.__call__, inputs)
    for name, function, signature in functions:
        archive.add_endpoint(name, function, signature)
    archive.add_variable_collection("live", [*variables])
    archive.write_out(path, **options)


def _keras_signature(model: Any) -> Any:
    from keras.src.export.export_utils import get_input_signature

    return get_input_signature(model)


def _tf_keras_signature(model: Any) -> Any:
    """Returns the arguments that `model.export` of tf_keras traces a model with."""
    inputs = getattr(model, "inputs", None)
    if not inputs:  # a subclass of `Model`
        spec = model._get_save_spec()
        if not spec:
            raise ValueError(
                "The model must have been called before it is exported. Received: the model "
                f"{model.name!r}, which has not. Call it on a batch, or fit it."
            )
        return [spec]
    specs = tf.nest.map_structure(
        lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype, name=tensor.name), inputs
    )
    return [specs] if isinstance(specs, list) and len(specs) > 1 else specs
