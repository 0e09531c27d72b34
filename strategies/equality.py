"""Verification that all replicas hold the same values, bit for bit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.compat.keras import tensorflow_variable
from strategies.variables.row_variable import RowVariable


def verify_equal(strategy: tf.distribute.Strategy, variables: Iterable[Any]) -> str:
    """Verifies that all replicas of all workers hold the same values; returns their SHA-256.

    Call it on all workers.

    >>> strategy = tf.distribute.get_strategy()
    >>> verify_equal(strategy, [tf.Variable([1.0, 2.0])])[:8]
    'fd4d85d3'

    Args:
      strategy: the strategy that the variables were created under.
      variables: Keras or TensorFlow variables, such as `model.variables`.

    Raises:
      TypeError: if `variables` is a model, or anything else that is not a collection of variables.
      RuntimeError: if values differ from the first worker's. The message names the ranks of the
        workers, and the index of the first variable that differs.
    """
    if not isinstance(variables, Iterable):
        raise TypeError(
            "The second argument of verify_equal must be a collection of variables. Received: "
            f"{type(variables).__name__}. Pass model.variables, for example."
        )
    digests = [[_digest(value) for value in _copies(variable)] for variable in variables]
    copies = max(map(len, digests), default=1)
    for own in digests:
        own += own[:1] * (copies - len(own))
    local = np.frombuffer(b"".join(b"".join(own) for own in digests), np.uint8)
    local = local.reshape(len(digests), copies, 32).swapaxes(0, 1)
    gathered = strategy.gather(tf.constant(local), axis=0).numpy()
    different = (gathered != gathered[:1]).any(axis=2)
    if different.any():
        ranks = sorted({int(n) // copies for n in np.flatnonzero(different.any(axis=1))})
        first = int(np.flatnonzero(different.any(axis=0))[0])
        raise RuntimeError(
            "All workers must hold the same values. Received: values that differ from those of the "
            f"first worker on worker {ranks}, in {int(different.any(axis=0).sum())} of "
            f"{len(digests)} variables, the first of them at index {first}. Check that every "
            "update uses reduced gradients."
        )
    return hashlib.sha256(local[0].tobytes()).hexdigest()


def _copies(variable: Any) -> list[Any]:
    """Returns the values of a variable on this worker's replicas.

    A variable that is aggregated on read has a single value.
    """
    value = tensorflow_variable(variable)
    if isinstance(value, RowVariable):
        return [value.token().numpy()]  # its rows differ between workers
    on_read = tf.VariableSynchronization.ON_READ
    if hasattr(value, "values") and value.synchronization != on_read:
        return [one.numpy() for one in value.values]
    return [variable.numpy()]


def _digest(value: Any) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(value).tobytes()).digest()
