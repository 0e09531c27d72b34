"""Whether all workers hold the same values, to the bit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf


def verify_equal(strategy: tf.distribute.Strategy, variables: Iterable[Any]) -> str:
    """Returns the SHA-256 of the variables' bytes, after seeing that all workers have the same.

    All workers call it together.

    >>> strategy = tf.distribute.get_strategy()
    >>> verify_equal(strategy, [tf.Variable([1.0, 2.0])])[:8]
    'fd4d85d3'

    Args:
      strategy: the strategy that the variables were made under.
      variables: Keras or TensorFlow variables, `model.variables` for example.

    Raises:
      RuntimeError: if a worker's values differ from the first worker's; it names the variables.
    """
    digests = [
        hashlib.sha256(np.ascontiguousarray(v.numpy()).tobytes()).digest() for v in variables
    ]
    mine = np.frombuffer(b"".join(digests), np.uint8).reshape(1, len(digests), 32)
    gathered = strategy.gather(tf.constant(mine), axis=0).numpy()
    different = (gathered != gathered[:1]).any(axis=2)
    if different.any():
        ranks = np.flatnonzero(different.any(axis=1)).tolist()
        first = int(np.flatnonzero(different.any(axis=0))[0])
        raise RuntimeError(
            "All workers hold the same values. Received: others than the first worker's in "
            f"worker {ranks}, in {int(different.any(axis=0).sum())} of {len(digests)} variables, "
            f"the first of them number {first}. See that every update is made from reduced "
            "gradients."
        )
    return hashlib.sha256(mine.tobytes()).hexdigest()
