"""Input of parameter-server training: a shard for training, all examples for evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from strategies.compat.keras import running_method
from strategies.data.distributed_dataset import ReplicaDataset
from strategies.data.sharding import shard_batches, undo_sharding


class ServerDataset(ReplicaDataset):
    """A worker's shard of a dataset; in Keras's `evaluate` and `predict`, all examples.

    Workers that take steps together split the examples among the workers that are present and
    combine the results. In the other modes, workers do not wait for one another, so each worker
    reads all examples and uses the servers' current values (in "geo", its own values).

    Args:
      part: this worker's shard.
      strategy: the strategy that distributes the dataset.
      source: the dataset of all workers; None if a function creates each worker's dataset.
    """

    def __init__(
        self,
        part: ReplicaDataset,
        strategy: tf.distribute.Strategy,
        source: tf.data.Dataset | None = None,
    ):
        super().__init__(part._dataset, strategy, part._options, is_compared=part._is_compared)  # noqa: SLF001
        self._part = part
        self._whole = source
        self._is_warned = False

    def __iter__(self) -> Iterator[Any]:
        method = running_method() if tf.executing_eagerly() else None
        if method not in ("evaluate", "predict"):
            return iter(self._part)
        if not self._extended.in_step:
            self._extended.refresh()
        if self._extended.workers.size == 1:
            return iter(self._part)
        whole = self._evaluation_batches(method)
        if whole is None:
            return iter(self._part)
        return iter(ReplicaDataset(whole, self._strategy, self._options))

    @property
    def _extended(self) -> Any:
        return self._strategy.extended

    def _evaluation_batches(self, method: str) -> tf.data.Dataset | None:
        """Returns this worker's batches for an evaluation; None means its shard."""
        workers = self._extended.workers
        present = [workers.rank]
        if self._extended.in_step:
            present = workers.all_gather(tf.constant(present)).numpy().tolist()
            if len(present) == workers.size:
                return None
            _check_all_present(method, present, workers.size)
        whole = None if self._whole is None else undo_sharding(self._whole)
        if whole is None:
            self._warn_of_own_examples(method)
            return None
        replicas = len(self._extended.worker_devices)
        return shard_batches(whole, present.index(workers.rank), len(present), replicas)

    def _warn_of_own_examples(self, method: str) -> None:
        if not self._is_warned:
            logging.warning(
                "%s covers only the examples of worker %d, because its dataset has no others: it "
                "has AutoShardPolicy.OFF, or was created by a function for each worker or from one "
                "worker's part of the data. To cover all examples, pass all of them, as arrays or "
                "as a tf.data.Dataset with another policy.",
                method, self._extended.workers.rank,
            )  # fmt: skip
        self._is_warned = True


def _check_all_present(method: str, present: list[int], size: int) -> None:
    """Checks that no worker has ended if the method needs all workers, as `predict` does."""
    if method == "predict":
        ended = sorted(set(range(size)) - set(present))
        raise RuntimeError(
            "In mode='sync' predict must be called while all workers are running, because it "
            f"gathers the predictions of all. Received: {size} workers, of which rank "
            f"{', '.join(map(str, ended))} has ended. Call predict on all workers before the first "
            "one ends, or call model.predict_on_batch."
        )
