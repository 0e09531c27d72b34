"""The content of a push to the servers, and sums of several pushes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass
class Push:
    """The data that a worker sends for one step, or for the sum of several steps.

    Attributes:
      dense: for each server, one vector per dtype. A float16 vector, in which compression sends
        float32 values, has the mean of the steps; any other vector has their sum.
      sparse: for each server, the values and row numbers of its part of each sparse argument.
      replicated: the values that every server gets, such as the learning rate. A sum of several
        steps has the newest values.
      counts: the increment of each counter.
      steps: the number of steps.
    """

    dense: list[list[np.ndarray]]
    sparse: list[list[tuple[np.ndarray, np.ndarray]]]
    replicated: list[np.ndarray]
    counts: list[np.ndarray]
    steps: int = 1


def merge_pushes(pushes: Sequence[Push]) -> Push:
    """Returns the sum of several pushes of one program, with the newest learning rate."""
    if len(pushes) == 1:
        return pushes[0]
    dense = [
        [_sum_or_mean(vectors) for vectors in zip(*server, strict=True)]
        for server in zip(*(push.dense for push in pushes), strict=True)
    ]
    sparse = [
        [_concatenate(parts) for parts in zip(*server, strict=True)]
        for server in zip(*(push.sparse for push in pushes), strict=True)
    ]
    counts = [_sum(counts) for counts in zip(*(push.counts for push in pushes), strict=True)]
    return Push(dense, sparse, pushes[-1].replicated, counts, sum(push.steps for push in pushes))


def _sum_or_mean(vectors: Sequence[np.ndarray]) -> np.ndarray:
    if vectors[0].dtype != np.float16:
        return _sum(vectors)
    # A sum may overflow float16 even if no summand does, so the server multiplies the mean.
    return np.asarray(np.mean(np.stack(vectors), axis=0, dtype=np.float32), np.float16)


def _sum(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.sum(np.stack(arrays), axis=0, dtype=arrays[0].dtype)


def _concatenate(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    values, rows = zip(*parts, strict=True)
    return np.concatenate(values), np.concatenate(rows)
