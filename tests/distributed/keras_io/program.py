"""The frame that each example runs in: alone, or under a strategy."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import strategies
from strategies.collectives.workers import are_in_step


@dataclass(frozen=True)
class Outcome:
    """The results of one run of an example.

    Attributes:
      models: those that were trained.
      logs: a loss for each epoch, and other values, by name.
      predicted: for rows that every run predicts, if the example predicts.
    """

    models: list[Any]
    logs: dict[str, list[float]]
    predicted: Any = None


@dataclass(frozen=True)
class Example:
    """A program that was written for one process.

    Attributes:
      run: builds, trains and uses a model under the runtime that it is given.
      tolerance: how near the numbers under a strategy are to those of one process; None where
        each replica draws numbers, or has batch statistics, of its own.
      falls: the log that falls over the epochs; None if none does in the few steps here.
      has_ids: whether it looks ids up, so that `DistributedEmbedding` can do it.
    """

    run: Callable[[Runtime], Outcome]
    tolerance: float | None = 1e-4
    falls: str | None = "loss"
    has_ids: bool = False

    @property
    def name(self) -> str:
        """The name of its function."""
        return self.run.__name__


class Runtime:
    """The scope that an example makes its model in, and the layer that looks up its ids.

    Args:
      strategy: None is one process without any.
      is_distributed: whether `DistributedEmbedding` takes the place of `keras.layers.Embedding`.
    """

    def __init__(self, strategy: tf.distribute.Strategy | None, is_distributed: bool):
        self._strategy = strategy
        self._is_distributed = is_distributed

    @property
    def is_alone(self) -> bool:
        """Whether this is one process without a strategy."""
        return self._strategy is None

    @property
    def rank(self) -> int:
        """The number of this worker; 0 in one process."""
        return 0 if self._strategy is None else strategies.worker_rank(self._strategy)

    def directory(self) -> str:
        """Returns a directory of the run's own, which workers that are in step share."""
        if self._strategy is None:
            return f"alone_{os.getpid()}"
        if are_in_step(self._strategy):
            return "together"
        return strategies.own_path("apart", self._strategy)

    def scope(self) -> contextlib.AbstractContextManager:
        """Returns what the model is made and compiled in."""
        return contextlib.nullcontext() if self._strategy is None else self._strategy.scope()

    def embedding(self, vocabulary: int, width: int, name: str, **options: Any) -> Any:
        """Returns a layer that looks ids up: Keras's, or this package's in its place."""
        if not self._is_distributed:
            return keras.layers.Embedding(vocabulary, width, name=name, **options)
        return strategies.DistributedEmbedding(width, name=name, **options)


def generator(seed: int = 0) -> np.random.Generator:
    """Returns what draws the data of an example: the same in every run."""
    return np.random.default_rng(seed)
