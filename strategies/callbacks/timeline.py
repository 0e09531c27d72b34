"""A trace of how every worker spends the time of each training step."""

from __future__ import annotations

import collections
import os
import socket
import time
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.callbacks.base import Callback
from strategies.collectives.base import Collectives
from strategies.collectives.workers import collectives_of
from strategies.diagnostics.consistency import check_same_call
from strategies.files.atomic_files import all_writing
from strategies.profiling import trace
from strategies.profiling.spans import INPUT, Recorded, Span, measure_steps, read_spans
from strategies.utils.argument_checks import check_whole_number

_NOTES = (
    "Times are from each host's wall clock. Waiting is the time from a worker's arrival at an "
    "exchange until the last worker's; between hosts it is as accurate as their clocks.",
    "Communication is the time from when the values are ready until the result is: queueing, "
    "waiting and transfer. Computation may continue meanwhile.",
    "Compute is the rest of a step, including sums over the replicas of one worker.",
)
_NO_INPUT = "Input was not observed on {}, and is included in compute."
_ON_GPU = "On GPUs an operation ends here when it is handed to the GPU; use TensorFlow's profiler."


class StepTimeline(Callback):
    """Writes a trace of the training steps of all workers, to view in a browser.

    The tracks of a worker show when it waited for input, computed, exchanged values, and waited for
    another worker to join an exchange:

        model.fit(dataset, callbacks=[strategies.callbacks.StepTimeline("steps.json.gz")])

    Open the file at https://ui.perfetto.dev, or in Chrome at chrome://tracing; it is in the Chrome
    trace-event format. Pass the callback on all workers; the first worker writes the file when
    training ends.

    Each worker has these tracks:

    * "steps": the calls of the train function. With `steps_per_execution`, a call has several
      steps.
    * "input": waiting for the next batch.
    * "communication": an exchange among the workers or with the parameter servers, from the time
      when its values are ready until its result is. It is measured alike for shared memory,
      Horovod and TensorFlow's collectives; what they do inside an exchange is not measured.
      Concurrent exchanges have separate tracks.
    * "waiting": the part of an exchange before the last worker joined it, with the name of that
      worker. It is derived from the clocks of all workers, which are the same on one host and
      assumed to agree between hosts (chrony or NTP keep them within milliseconds). Exchanges with
      parameter servers in modes other than "sync" do not wait for other workers.
    * "compute": the rest of a step. Computation that overlaps with an exchange counts as
      communication; sums over the replicas of one process count as computation.
    * "in the background": transfers to and from parameter servers while the worker computes.

    `otherData` in the file has the totals in seconds, and notes on what was not observed. On GPUs
    the times are those of handing work to the device: use TensorFlow's profiler there. The step is
    traced once with clocks in it; from then on, each exchange runs a few more small operations,
    also in later runs of the same model.

    Args:
      path: the path of the file; compressed if it ends in ".gz".
      max_steps: the number of calls of the train function to keep; only the last ones are kept.

    Raises:
      ValueError: if `max_steps` is not a positive integer, or the path is not in a file system.
      OSError: when training ends, if the file cannot be written; a `RuntimeError` on the other
        workers.
    """

    runs_on_all_workers = True

    def __init__(self, path: str | os.PathLike[str], *, max_steps: int = 1000):
        check_whole_number("max_steps", max_steps, 1)
        self._path = os.fspath(path)
        if "://" in self._path:
            raise ValueError(
                f"A timeline must be written to a local file. Received: {self._path!r}. Pass a "
                "local path, and copy the file afterwards."
            )
        self._steps: collections.deque[Span] = collections.deque(maxlen=max_steps)
        self._epoch = 0
        self._start = self._begin = 0.0
        self._first = 0

    def set_model(self, model: Any) -> None:
        """Turns on the measurement of steps, before Keras traces them."""
        super().set_model(model)
        measure_steps(model)

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Waits for all workers, so that all of them record the same exchanges from here on."""
        self._steps.clear()
        check_same_call(self._collectives, "StepTimeline")
        self._start = time.time()

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Stores the epoch."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Records the start of a step."""
        self._first, self._begin = batch, time.time()

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Records a step, or the several steps of one execution."""
        steps = f"step {batch}" if batch == self._first else f"steps {self._first}-{batch}"
        name = f"epoch {self._epoch + 1}, {steps}"
        self._steps.append(Span(name, self._begin, time.time()))

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Gathers the records of all workers; the first worker writes the file."""
        mine = self._record_step()
        collectives = self._collectives
        workers = [trace.WorkerSteps.from_json(text) for text in _gather_texts(mine, collectives)]
        with all_writing(collectives, "Timelines", self._path):
            if collectives.rank == 0:
                trace.write(self._path, trace.trace(workers, self._notes(workers)))

    @property
    def _collectives(self) -> Collectives:
        return collectives_of(self.model.distribute_strategy)

    def _record_step(self) -> bytes:
        # Exchanges among all workers are matched by their number since the start, so all are kept.
        # Other spans are kept from the first kept step on.
        streams, complete = read_spans(self._start)
        kept = [step for step in self._steps if step.begin >= complete or complete == self._start]
        steps_begin = kept[0].begin if kept else self._start
        shown = [
            Recorded(
                kind, is_common, [span for span in spans if is_common or span.end > steps_begin]
            )
            for kind, is_common, spans in streams
        ]
        rank = self._collectives.rank
        return trace.WorkerSteps(rank, self._name(rank), kept, shown).to_json()

    def _name(self, rank: int) -> str:
        resolver = self.model.distribute_strategy.cluster_resolver
        task = getattr(resolver, "task_type", None), getattr(resolver, "task_id", None)
        name = f"worker {rank}" if None in task else f"{task[0]} {task[1]}"
        return f"{name} ({socket.gethostname()})"

    def _notes(self, workers: list[trace.WorkerSteps]) -> list[str]:
        unseen = [worker.name for worker in workers if not worker.spans(INPUT)]
        return [
            *_NOTES,
            *([_NO_INPUT.format(", ".join(unseen))] if unseen else []),
            *([_ON_GPU] if tf.config.list_physical_devices("GPU") else []),
        ]


def _gather_texts(text: bytes, collectives: Collectives) -> list[bytes]:
    """Returns the texts of all workers, by rank."""
    mine = np.frombuffer(zlib.compress(text), np.uint8)
    lengths = collectives.all_gather(tf.constant([mine.size], tf.int64)).numpy()
    joined = collectives.all_gather(tf.constant(mine)).numpy()
    parts = np.split(joined, np.cumsum(lengths)[:-1])
    return [zlib.decompress(part.tobytes()) for part in parts]
