"""Liveness checks, so that no worker waits for a dead one."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import tensorflow as tf

from strategies.compat.tensorflow import context

_PAUSE_SECONDS = 1.0
_ANSWER_SECONDS = 10.0
_TRIES = 3


class LivenessWatch:
    """A thread that checks the liveness of all workers in turn.

    If a worker is dead, operations that wait for it end with `tf.errors.UnavailableError`. A
    process that has ended refuses the connection, which is detected after two pauses. A silent
    host is detected after three times `_ANSWER_SECONDS`.

    Args:
      workers: each worker's name, by its TensorFlow device name.
    """

    def __init__(self, workers: Mapping[str, str]):
        self._workers = workers
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread, so that it does not run while Python shuts down."""
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(_PAUSE_SECONDS):
            for device, name in self._workers.items():
                reason = self._missing(device)
                if reason:
                    context().abort_collective_ops(
                        tf.errors.UNAVAILABLE, f"{name} does not answer any more: {reason}"
                    )
                    return

    def _missing(self, device: str) -> str:
        """Returns why a worker is considered dead; "" if it is alive."""
        for _ in range(_TRIES):
            try:
                context().check_collective_ops_peer_health(
                    device, timeout_in_ms=int(_ANSWER_SECONDS * 1000)
                )
                return ""
            except tf.errors.OpError as error:
                reason = error.message.splitlines()[0]
            if self._stopped.wait(_PAUSE_SECONDS):
                return ""
        return reason
