"""Asynchronous training: updates are sent in the background."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable

import numpy as np

from strategies.diagnostics.metrics import add_source
from strategies.profiling.spans import BACKGROUND, SpanStream
from strategies.ps.connection import ServerGroup
from strategies.ps.modes.base import Mode
from strategies.ps.push import Push, merge_pushes
from strategies.ps.server_program import StepProgram
from tf_config.launcher.progress_file import Sample


class Async(Mode):
    """Sends a worker's updates from a background thread while the worker keeps computing.

    Steps wait in a queue. If the servers fall behind, the queue fills up and the worker waits. The
    thread takes up to `max_merge` steps from the queue and sends their sum as one update; it sends
    steps that cannot be summed, such as those that assign values, one by one. After every
    `pull_every` steps sent, it pulls the variables' current values, which the worker uses from its
    next step on.

    Staleness: the values that a worker computes with lack at most `send_queue_size` of its own
    steps that are queued or being sent, and `pull_every - 1` steps that were sent after the last
    pull. The number of other workers' steps that they lack is unbounded.

    Args:
      servers: the servers of the job.
      max_merge: the maximum number of steps that are merged into one update.
      send_queue_size: the maximum number of steps that are queued or being sent; None is 1, or
        twice `max_merge` if steps are merged.
      pull_every: the number of steps between two pulls.
    """

    settings = ("max_merge", "send_queue_size", "pull_every")

    def __init__(
        self,
        servers: ServerGroup,
        max_merge: int = 1,
        send_queue_size: int | None = None,
        pull_every: int = 1,
    ):
        super().__init__(servers)
        self._max_merge = max_merge
        self._pull_every = pull_every
        self._queue: queue.Queue[tuple[StepProgram, Push]] = queue.Queue()
        # While `max_merge` steps are sent as one update, as many can be queued.
        size = send_queue_size or (2 * max_merge if max_merge > 1 else 1)
        self._free = threading.Semaphore(size)
        # The values pulled with the last push of a program, until a step uses them; None if they
        # are outdated and must be pulled again. Guarded by the lock, because one thread puts them
        # and another takes them.
        self._newest: dict[StepProgram, list[np.ndarray] | None] = {}
        self._steps_since_pull: dict[StepProgram, int] = {}
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._spans = SpanStream(BACKGROUND)
        add_source(self, Async.samples)

    def samples(self) -> Iterable[Sample]:
        """Returns the number of steps that are queued, for the page of metrics."""
        return (Sample("queue_depth", self._queue.qsize(), ("updates",)),)

    def step(self, program: StepProgram, push: Push) -> list[np.ndarray] | None:
        """Queues the updates of a step; returns the values pulled since the last step."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._send, name="send", daemon=True)
            self._thread.start()
        self._free.acquire()
        if self._error is not None:
            # Released, so that the next step raises the error instead of waiting forever.
            self._free.release()
            raise self._error
        self._queue.put((program, push))
        with self._lock:
            is_pulled = program in self._newest
            newest = self._newest.pop(program, None)
        return self._pull(program, push) if is_pulled and newest is None else newest

    def drain(self) -> None:
        """Waits until all steps have been sent."""
        self._queue.join()
        if self._error is not None:
            raise self._error

    def forget_pulled(self) -> None:
        """Discards pulled values that no step has used yet, because they are outdated."""
        with self._lock:
            self._newest.clear()

    def _pull(self, program: StepProgram, push: Push) -> list[np.ndarray]:
        return self._spans.measure_call(
            "pull", lambda: self._collect(lambda server: program.pull(push, server))
        )

    def _send(self) -> None:
        """Sends the steps in the queue; runs in the thread, which ends with the process.

        At the end of the program, `drain` has emptied the queue, so the thread waits in Python.
        """
        # A step of another program, which was taken from the queue while steps were merged.
        leftover: tuple[StepProgram, Push] | None = None
        while True:
            program, push = leftover or self._queue.get()
            leftover, pushes = None, [push]
            while len(pushes) < self._max_merge and program.is_mergeable:
                try:
                    other, push = self._queue.get_nowait()
                except queue.Empty:
                    break
                if other is not program:
                    leftover = other, push
                    break
                pushes.append(push)
            try:
                self._deliver(program, pushes)
            except BaseException as error:  # noqa: B036  raised again in the worker's next step
                self._error = self._error or error
            for _ in pushes:
                self._queue.task_done()
                self._free.release()

    def _deliver(self, program: StepProgram, pushes: list[Push]) -> None:
        # After an error, later steps are dropped: training cannot continue without that step.
        if self._error is not None:
            return
        steps = self._steps_since_pull.get(program, 0) + len(pushes)
        push = merge_pushes(pushes)
        if steps < self._pull_every:
            self._spans.measure_call(
                "push", lambda: self._servers.each(lambda server: program.push(push, server))
            )
            self._steps_since_pull[program] = steps
            return
        pulled = self._spans.measure_call(
            "push and pull",
            lambda: self._collect(lambda server: program.push_and_pull(push, server)),
        )
        self._steps_since_pull[program] = 0
        with self._lock:
            for other in self._newest:
                if other is not program and other.shares_variables(program):
                    # Older than this program's new values; pulled again when needed.
                    self._newest[other] = None
            self._newest[program] = pulled
