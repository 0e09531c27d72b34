"""A Keras 3 model under Horovod alone, started from TF_CONFIG."""

from __future__ import annotations

from typing import Any

import keras

import strategies


def start(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> tuple[Any, list[Any]]:
    """Builds the optimizer and broadcasts the model; returns `hvd` and the variables it takes."""
    strategies.MultiWorkerMirroredStrategy(communication="horovod")
    import horovod.tensorflow as hvd

    optimizer.build(model.trainable_variables)
    # Horovod asks a variable for what Keras 3's does not have; TensorFlow's beneath it does.
    variables = [variable.value for variable in model.trainable_variables]
    hvd.broadcast_variables(variables, root_rank=0)
    return hvd, variables
