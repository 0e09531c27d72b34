"""Training speed, and the share of time spent on communication."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from strategies.callbacks.base import Callback
from strategies.collectives.workers import collectives_of
from strategies.profiling.spans import INPUT, common, covered_seconds, measure_steps, read_spans

_SPEED, _SHARE = "samples_per_second", "communication_share"
_LOOK_SECONDS = 1.0


class Throughput(Callback):
    """Measures training speed and the share of time spent on communication, without validation.

    Each epoch's logs have two numbers, which are the first worker's on all workers:

    * "samples_per_second": the speed of all workers together. The first epoch includes the time
      to trace the graph.
    * "communication_share": the share of the time, from 0 to 1, in which an exchange with other
      workers or with parameter servers was in progress, including waiting for a slower worker.
      Computation may overlap with it, so a share of 0.3 does not mean that training would be 1.4
      times as fast without communication. The share of a single worker without parameter servers
      is 0; sums over the replicas of one process count as computation. On GPUs the share is that
      of handing work to the device.

    Keras's progress bar shows both at the end of an epoch; that of Keras 3 also shows them live if
    the number of steps is known. Callbacks after this one see them in the logs:
    `keras.callbacks.TensorBoard` writes them as scalars. The step is traced with clocks in it,
    again if it was traced before.

        callbacks = [
            strategies.callbacks.Throughput(len(x)),
            strategies.callbacks.on_first_worker(keras.callbacks.TensorBoard("logs"), strategy),
        ]

    Args:
      samples: the number of samples in an epoch, over all workers.
      clock: a function that returns the time in seconds.
    """

    # Keras need not wait for this callback after each step: it only reads the clock.
    async_safe = True

    runs_on_all_workers = True

    def __init__(self, samples: int, clock: Callable[[], float] = time.perf_counter):
        self._samples = samples
        self._clock = clock
        self._seconds = 0.0
        self._since = 0.0
        self._periods: list[tuple[float, float]] = []
        self._period_begin = 0.0
        self._shown: dict[str, float] = {}
        self._looked = 0.0

    def set_model(self, model: Any) -> None:
        """Turns on the measurement of steps, before Keras traces them."""
        super().set_model(model)
        measure_steps(model)

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Starts the clock."""
        self._seconds = 0.0
        self._periods = []
        self._shown = {}
        self._restart()

    def on_test_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Stops the clock for validation."""
        self._seconds += self._clock() - self._since
        self._periods.append((self._period_begin, time.time()))

    def on_test_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Restarts the clock."""
        self._restart()

    def _implements_train_batch_hooks(self) -> bool:
        return False  # tf_keras's progress bar would average values that are means already

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Shows the speed and the share so far in Keras 3's progress bar, updated each second."""
        params = self.params or {}
        has_bar = params.get("verbose") in (1, "auto")
        if logs is None or not has_bar or not params.get("steps"):
            return
        if time.time() - max(self._looked, self._period_begin) >= _LOOK_SECONDS:
            self._looked = time.time()
            seconds = self._looked - self._period_begin
            samples = self._samples * (batch + 1) / params["steps"]
            self._shown = {_SPEED: samples / seconds, _SHARE: self._share()}
        logs.update(self._shown)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the speed and the share to the logs."""
        seconds = self._seconds + self._clock() - self._since
        mine = tf.constant([self._samples / seconds, self._share()], tf.float64)
        collectives = collectives_of(self.model.distribute_strategy)
        all_of_first = collectives.broadcast(mine).numpy().tolist()
        if logs is not None:
            logs.update(zip((_SPEED, _SHARE), all_of_first, strict=True))

    def _restart(self) -> None:
        self._since = self._clock()
        self._period_begin = time.time()

    def _share(self) -> float:
        """Returns the share of communication in the training time since the epoch began."""
        periods = [*self._periods, (self._period_begin, time.time())]
        streams, complete = read_spans(periods[0][0])
        periods = common(periods, [(complete, time.time())])
        exchanges = [span for stream in streams if stream.kind != INPUT for span in stream.spans]
        return covered_seconds(exchanges, periods) / max(
            sum(end - begin for begin, end in periods), 1e-9
        )
