"""Liveness checks, so that no worker waits for a dead one."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import tensorflow as tf

from strategies.compat.tensorflow import context
from strategies.utils.background_thread import BackgroundThread

_PAUSE_SECONDS = 1.0
_ANSWER_SECONDS = 10.0
_TRIES = 3


class LivenessWatch(BackgroundThread):
    """A thread that checks the liveness of all workers in turn.

    If a worker is dead, operations that wait for it raise `tf.errors.UnavailableError`. A process
    that has ended refuses connections, which is detected after two pauses. A host that does not
    answer is detected after three times `_ANSWER_SECONDS`.

    Args:
      workers: each worker's name, by its TensorFlow device name.
    """

    def __init__(self, workers: Mapping[str, str]):
        super().__init__(self._watch, "watch")
        self._workers = workers

    def _watch(self, stopped: threading.Event) -> None:
        while not stopped.wait(_PAUSE_SECONDS):
            for device, name in self._workers.items():
                reason = _missing(device, stopped)
                if reason:
                    context().abort_collective_ops(
                        tf.errors.UNAVAILABLE, f"{name} does not answer any more: {reason}"
                    )
                    return


def _missing(device: str, stopped: threading.Event) -> str:
    """Returns why a worker is considered dead; "" if it is alive."""
    for _ in range(_TRIES):
        try:
            context().check_collective_ops_peer_health(
                device, timeout_in_ms=int(_ANSWER_SECONDS * 1000)
            )
            return ""
        except tf.errors.OpError as error:
            reason = error.message.splitlines()[0]
        if stopped.wait(_PAUSE_SECONDS):
            return ""
    return reason
