"""The first value of a row, from the seed, the table's name and the id alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from strategies.embedding.shard.hashing import key_of, uniform
from strategies.embedding.shard.normal import quantile

# Two standard deviations, where Keras cuts its TruncatedNormal off.
_CUT = 0.02275013194817921


def initial_rows(
    kind: str, config: Mapping[str, Any], seed: int, table: str, width: int
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function of ids, int64 [n], that makes their first rows, float32 [n, width].

    A row does not depend on which other ids come, in what order, or on which worker, to the bit.

    >>> rows = initial_rows("RandomUniform", {"minval": 0.0, "maxval": 2.0}, 0, "users", 3)
    >>> both, one = rows(tf.constant([7, -1], tf.int64)), rows(tf.constant([-1], tf.int64))
    >>> bool(tf.reduce_all(both[1] == one[0]))
    True

    Args:
      kind: the name of a Keras initializer whose numbers do not depend on the shape.
      config: its configuration.
      seed: of the layer.
      table: its name.
      width: of a row.

    Raises:
      ValueError: if the initializer is another one, or has a seed of its own.
    """
    if config.get("seed") is not None:
        raise ValueError(
            "The first value of a row depends on the layer's seed, the table and the id. "
            f"Received: {kind} with seed={config['seed']!r}. Give the seed to the layer."
        )
    key = key_of(seed, table)

    def numbers(ids: tf.Tensor) -> tf.Tensor:
        return uniform(ids, key, width)

    def constant(value: float) -> Callable[[tf.Tensor], tf.Tensor]:
        return lambda ids: tf.fill([tf.size(ids), width], tf.constant(value, tf.float32))

    if kind == "Zeros":
        return constant(0.0)
    if kind == "Ones":
        return constant(1.0)
    if kind == "Constant" and isinstance(config["value"], (int, float)):
        return constant(float(config["value"]))
    if kind == "RandomUniform":
        low, high = config["minval"], config["maxval"]
        return lambda ids: low + (high - low) * numbers(ids)
    if kind in ("RandomNormal", "TruncatedNormal"):
        mean, deviation = config["mean"], config["stddev"]
        cut = _CUT if kind == "TruncatedNormal" else 0.0
        return lambda ids: mean + deviation * quantile(cut + (1 - 2 * cut) * numbers(ids))
    raise ValueError(
        "A row's first value cannot depend on how many rows there are. Received: "
        f"embeddings_initializer {kind}. Choose 'uniform', 'normal', 'truncated_normal', 'zeros', "
        "'ones' or keras.initializers.Constant of a number."
    )
