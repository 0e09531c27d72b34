"""Even partitioning of examples over replicas and workers, and of variables over servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def part_bounds(
    total: Any, number: Any, count: int, minimum: Callable[[Any, Any], Any] = min
) -> tuple[Any, Any]:
    """Returns the bounds of one part of an even partition; the first parts are larger.

    >>> [part_bounds(5, number, 3) for number in range(3)]
    [(0, 2), (2, 4), (4, 5)]

    Args:
      total: the number of items, an integer or an integer tensor.
      number: the number of the part, from 0; an integer, or a tensor of the dtype of `total`.
      count: the number of parts.
      minimum: a function that returns the smaller of two numbers; `tf.minimum` for tensors.
    """
    each, more = total // count, total % count
    start, stop = (n * each + minimum(n, more) for n in (number, number + 1))
    return start, stop
