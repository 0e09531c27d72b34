"""What the programs of tests/distributed assert in the same way."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator

import numpy as np
import tensorflow as tf


@contextlib.contextmanager
def raises(kind: type[BaseException] | tuple, *parts: str) -> Iterator[None]:
    """Asserts that the block raises an error whose text has all of the parts.

    >>> with raises(ValueError, "invalid literal"):
    ...     int("one")
    """
    try:
        yield
    except kind as error:
        for part in parts:
            assert part in str(error), f"{part!r} is not in {error}"
    else:
        raise AssertionError(f"nothing was raised: {kind}, {parts}")


def assert_close(found: object, expected: object) -> None:
    """Asserts that values are equal but for the rounding of float32."""
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-6)


def assert_all_close(found: Iterable, expected: Iterable, **tolerance: object) -> None:
    """Asserts that two lists of arrays, or of variables, are as long and as near each other."""
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), **tolerance)


def assert_all_equal(found: Iterable, expected: Iterable) -> None:
    """Asserts that two lists of arrays, or of variables, are equal to the bit."""
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def assert_same_everywhere(strategy: tf.distribute.Strategy, value: object) -> None:
    """Asserts that a value that JSON can hold, such as a history, is the same on all workers."""
    text = json.dumps(value, sort_keys=True, default=float).encode()
    mine = np.zeros([1, 8192], np.uint8)
    mine[0, : len(text)] = np.frombuffer(text, np.uint8)
    gathered = strategy.gather(tf.constant(mine), axis=0).numpy()
    assert (gathered == gathered[:1]).all(), value
