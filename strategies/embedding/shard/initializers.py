"""Initial values of rows, which depend only on the seed, the table's name and the id.

The bits of a value must not depend on its position in a tensor. TensorFlow's own functions
(`tf.math.ndtri`, `log`) compute several elements at once, but the last few of a tensor one by one
with another formula, and 5 % of these differed in their last bits. So the quantiles of the normal
distribution are computed here only with operations that IEEE 754 rounds exactly (sums, products,
quotients and square roots) and with bit operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from strategies.embedding.shard.hashing import key_of, uniform
from strategies.utils.argument_checks import check_whole_number

# The probability below -2 standard deviations, where Keras truncates its TruncatedNormal.
_CUT = 0.02275013194817921
# Wichura, "Algorithm AS 241: The percentage points of the normal distribution", 1988: PPND7, whose
# relative error is about 1e-7. Coefficients from the highest power down.
_CENTRE = 0.425
_CENTRE_OVER = (59.109374720, 159.29113202, 50.434271938, 3.3871327179)
_CENTRE_UNDER = (67.187563600, 78.757757664, 17.895169469, 1.0)
# For sqrt(-log(p)) up to 5, that is, for p from 1.4e-11.
_TAIL_OVER = (0.17023821103, 1.3067284816, 2.7568153900, 1.4234372777)
_TAIL_UNDER = (0.12021132975, 0.73700164250, 1.0)
# log(m) = 2 s (1 + s^2 / 3 + s^4 / 5 + ...) with s = (m - 1) / (m + 1), for m from 1 to 2.
_LOGARITHM = tuple(1 / power for power in range(17, 0, -2))
_MANTISSA_BITS = 52


def initial_rows(
    kind: str, config: Mapping[str, Any], seed: int, table: str, width: int
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function from ids, int64 [n], to their initial rows, float32 [n, width].

    The bits of a row do not depend on the other ids, their order or the worker.

    >>> rows = initial_rows("RandomUniform", {"minval": 0.0, "maxval": 2.0}, 0, "users", 3)
    >>> both, one = rows(tf.constant([7, -1], tf.int64)), rows(tf.constant([-1], tf.int64))
    >>> bool(tf.reduce_all(both[1] == one[0]))
    True

    Args:
      kind: name of a Keras initializer whose values do not depend on the shape.
      config: configuration of the initializer. Its own seed, if it has one, replaces the layer's.
      seed: seed of the layer.
      table: name of the table.
      width: width of a row.

    Raises:
      ValueError: if the initializer is not supported, or its seed is a `SeedGenerator`.
    """
    own_seed = config.get("seed")
    if own_seed is not None:
        # The state of a generator would make a row depend on what was drawn before it.
        check_whole_number(
            "The seed of an embedding's initializer", own_seed, advice="Pass a number."
        )
    key = key_of(seed if own_seed is None else own_seed, table)

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
        "A row's initial value cannot depend on the number of rows. Received: "
        f"embeddings_initializer {kind}. Use 'uniform', 'normal', 'truncated_normal', 'zeros', "
        "'ones' or keras.initializers.Constant of a number."
    )


def quantile(p: tf.Tensor) -> tf.Tensor:
    """Returns the quantiles of the standard normal distribution, float32.

    >>> [round(float(each), 2) for each in quantile(tf.constant([0.5, 0.975]))]
    [0.0, 1.96]

    Args:
      p: probabilities, float32, above 1e-10 and below 1.
    """
    p = tf.cast(p, tf.float64)
    distance = p - 0.5
    inner = _CENTRE**2 - distance * distance
    centre = distance * (_polynomial(_CENTRE_OVER, inner) / _polynomial(_CENTRE_UNDER, inner))
    outer = tf.sqrt(-_logarithm(tf.minimum(p, 1.0 - p))) - 1.6
    tail = _polynomial(_TAIL_OVER, outer) / _polynomial(_TAIL_UNDER, outer)
    tail = tf.where(distance < 0, -tail, tail)
    return tf.cast(tf.where(tf.abs(distance) <= _CENTRE, centre, tail), tf.float32)


def _polynomial(coefficients: Sequence[float], x: tf.Tensor) -> tf.Tensor:
    first, *others = coefficients
    result = tf.fill(tf.shape(x), tf.constant(first, x.dtype))
    for coefficient in others:
        result = result * x + coefficient
    return result


def _logarithm(x: tf.Tensor) -> tf.Tensor:
    """Returns the natural logarithms of positive normal numbers, float64."""
    bits = tf.bitcast(x, tf.int64)
    exponent = tf.bitwise.right_shift(bits, tf.constant(_MANTISSA_BITS, tf.int64)) - 1023
    one = 1023 << _MANTISSA_BITS
    mantissa = tf.bitcast((bits & (2**_MANTISSA_BITS - 1)) | one, tf.float64)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    return tf.cast(exponent, tf.float64) * math.log(2) + 2.0 * s * _polynomial(_LOGARITHM, s * s)
