"""Which rows of a dataset a worker takes: its part to train on, all of them to evaluate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from strategies._keras import running_method
from strategies.data.distributed_dataset import ReplicaDataset
from strategies.data.sharding import cut, whole_of


class ServerDataset(ReplicaDataset):
    """A worker's part of a dataset; in Keras's `evaluate` and `predict` what all workers need.

    Workers that go step by step share the rows out among those that are there, and put together
    what came of them. Others cannot wait for one another, so each takes all rows.

    Args:
      part: this worker's.
      strategy: the strategy that distributes them.
      source: the dataset of all workers; None if each has a function that makes its own.
    """

    def __init__(
        self,
        part: ReplicaDataset,
        strategy: tf.distribute.Strategy,
        source: tf.data.Dataset | None = None,
    ):
        super().__init__(part._dataset, strategy, part._options)
        self._part = part
        self._source = source
        self._is_said = False

    def __iter__(self) -> Iterator:
        method = running_method() if tf.executing_eagerly() else None
        if method not in ("evaluate", "predict") or self._extended.workers.size == 1:
            return iter(self._part)
        whole = self._evaluated(method)
        if whole is None:
            return iter(self._part)
        return iter(ReplicaDataset(whole, self._strategy, self._options))

    @property
    def _extended(self) -> Any:
        return self._strategy.extended

    def _evaluated(self, method: str) -> tf.data.Dataset | None:
        """Returns this worker's batches of what all workers evaluate, None for its part."""
        workers = self._extended.workers
        here = [workers.rank]
        if self._extended.in_step:
            here = workers.all_gather(tf.constant(here)).numpy().tolist()
            if len(here) == workers.size:
                return None
            _check_all_are_here(method, here, workers.size)
        else:
            self._extended.refresh()
        whole = None if self._source is None else whole_of(self._source)
        if whole is None:
            self._say(method)
            return None
        replicas = len(self._extended.worker_devices)
        return cut(whole, here.index(workers.rank), len(here), replicas)

    def _say(self, method: str) -> None:
        if not self._is_said:
            logging.warning(
                "%s is of worker %d's rows alone, for so is its dataset: AutoShardPolicy.OFF, a "
                "function for each worker, or what was made of a worker's part. Pass all rows, as "
                "arrays or a tf.data.Dataset of another policy, to evaluate all of them.",
                method, self._extended.workers.rank,
            )  # fmt: skip
        self._is_said = True


def _check_all_are_here(method: str, here: list[int], size: int) -> None:
    """Raises if a method needs workers that have ended."""
    if method == "predict":
        ended = sorted(set(range(size)) - set(here))
        raise RuntimeError(
            "In mode='sync' predict puts the rows of all workers together. Received: of "
            f"{size} workers, rank {', '.join(map(str, ended))} has ended. Call predict on all "
            "workers before the first one ends, or in each of them model.predict_on_batch."
        )
