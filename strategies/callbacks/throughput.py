"""Training speed, in samples a second of all workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from strategies.callbacks.base import Callback
from strategies.collectives.workers import collectives_of


class Throughput(Callback):
    """Measures training speed: samples a second of all workers, validation left out.

    The logs of each epoch have it as "samples_per_second" (the first worker's clock, on all
    workers), and the first worker prints it where `fit` is verbose. The first epoch includes the
    time to build the graph.

    Args:
      samples: how many an epoch has, those of all workers together.
      clock: returns seconds.
    """

    # Keras need not wait for it after each step: it has no hook for batches.
    async_safe = True

    def __init__(self, samples: int, clock: Callable[[], float] = time.perf_counter):
        self._samples = samples
        self._clock = clock
        self._seconds = 0.0
        self._since = 0.0

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Starts the clock."""
        self._seconds = 0.0
        self._since = self._clock()

    def on_test_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Stops the clock for validation."""
        self._seconds += self._clock() - self._since

    def on_test_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Restarts the clock."""
        self._since = self._clock()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the speed to the logs."""
        seconds = self._seconds + self._clock() - self._since
        strategy = self.model.distribute_strategy
        collectives = collectives_of(strategy)
        mine = tf.constant(self._samples / seconds, tf.float64)
        speed = float(collectives.broadcast(mine))
        if logs is not None:
            logs["samples_per_second"] = speed
        if collectives.rank == 0 and (self.params or {}).get("verbose"):
            replicas = strategy.num_replicas_in_sync
            print(f"\nEpoch {epoch + 1}: {speed:.0f} samples/s on {replicas} replicas", flush=True)
