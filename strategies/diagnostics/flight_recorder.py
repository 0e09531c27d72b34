"""Writes the last operations of this worker to a file, to be compared with those of the others."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from absl import logging

from strategies.diagnostics.operations import OperationTracker
from tf_config import Task
from tf_config.doctor.operation_trace import OperationTrace

TRACE_VARIABLE = "KERAS_STRATEGIES_TRACE_DIR"
_DIRECTORY = "operations"


class FlightRecorder:
    """Writes the last operations of a worker.

    Args:
      task: the task of the worker.
      operations: the tracker of its operations.
      place: returns where the worker is in the user's program.
      environ: the environment variables; one of them may name the directory.
    """

    def __init__(
        self,
        task: Task,
        operations: OperationTracker,
        place: Callable[[], str],
        environ: Mapping[str, str] = os.environ,
    ):
        self._task = task
        self._operations = operations
        self._place = place
        # Now, because the program may change its directory.
        self._directory = Path(environ.get(TRACE_VARIABLE) or _DIRECTORY).absolute()

    def write(self, reason: str) -> None:
        """Writes a file, or replaces the worker's former one, and logs its name or why it failed.

        Args:
          reason: why it is written.
        """
        trace = OperationTrace(
            (self._task.type, self._task.index),
            time.time(),
            reason,
            self._place(),
            self._operations.begun(),
            self._operations.latest(),
        )
        path = trace.path(self._directory)
        unfinished = path.with_suffix(".unfinished")
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            unfinished.write_text(trace.to_json())
            unfinished.replace(path)
        except OSError as error:
            logging.warning(
                "The last operations of %s cannot be written to %s (%s). Set %s to a directory "
                "that can be written.", self._task, path, error.strerror, TRACE_VARIABLE,
            )  # fmt: skip
            return
        logging.warning(
            "The last operations of %s are in %s. To compare those of all workers: tf-config "
            "doctor --trace %s", self._task, path, self._directory,
        )  # fmt: skip
