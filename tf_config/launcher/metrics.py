"""A page of the tasks' numbers in Prometheus's text format, which the launcher serves."""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from tf_config.cluster import Task
from tf_config.errors import ClusterConfigError, quoted
from tf_config.http_server import HttpServer
from tf_config.launcher.progress_file import Report

PREFIX = "keras_strategies_"
_COUNTER, _GAUGE = "CounterMetricFamily", "GaugeMetricFamily"
_TASK_LABELS = ("job", "task")
_DIRECTORY = ("directory",)
_INSTALL = 'pip install "keras-strategies[metrics]"'


class Metric(NamedTuple):
    """A metric of the page.

    Attributes:
      family: the class of `prometheus_client.core` for metrics of its type.
      text: a description of it.
      labels: its labels other than those of the task.
    """

    family: str
    text: str
    labels: tuple[str, ...] = ()


# The names without the prefix. The tasks report those that no other comment is about.
METRICS = {
    "steps_total": Metric(_COUNTER, "Training steps that the process has made."),
    "samples_total": Metric(_COUNTER, "Examples that the process has trained on."),
    "step_seconds": Metric(_GAUGE, "Mean duration of the training steps of the last 10 seconds."),
    "samples_per_second": Metric(_GAUGE, "Speed of the process over the last 10 seconds."),
    "waited_seconds_total": Metric(
        _COUNTER, "Time in exchanges until a later worker began them.", ("late",)
    ),
    "queue_depth": Metric(_GAUGE, "Elements that wait in a queue of the process.", ("queue",)),
    "embedding_rows": Metric(_GAUGE, "Rows of a table in the memory of the process.", ("table",)),
    "embedding_admitted_total": Metric(
        _COUNTER, "Rows that the process has created in a table.", ("table",)
    ),
    "embedding_evicted_total": Metric(
        _COUNTER, "Rows that the process has removed from a table by eviction.", ("table",)
    ),
    "checkpoint_duration_seconds": Metric(
        _GAUGE, "Time from the beginning of the last checkpoint until it was complete.", _DIRECTORY
    ),
    # Computed by the launcher: from CHECKPOINT_TIME, from the time of a report, and from /proc.
    "checkpoint_age_seconds": Metric(
        _GAUGE, "Time since the last checkpoint was complete.", _DIRECTORY
    ),
    "report_age_seconds": Metric(_GAUGE, "Time since the process reported its numbers."),
    "resident_memory_bytes": Metric(_GAUGE, "Memory of the process, without its children."),
}
# Reported by tasks, but not shown as it is.
CHECKPOINT_TIME = "checkpoint_time"
_RESTARTS = Metric(_COUNTER, "How often all tasks of the job, or one of them, were restarted.")


class TaskMetrics(NamedTuple):
    """What is known of a task.

    Attributes:
      task: the task.
      memory: the memory of its process in bytes; 0 if it is unknown.
      report: the numbers that it has reported; None if it has reported none.
    """

    task: Task
    memory: int
    report: Report | None


def checkpoint_time(metrics: TaskMetrics) -> float:
    """Returns when the last checkpoint was complete, by the task's clock; 0 if there is none."""
    samples = () if metrics.report is None else metrics.report.samples
    return max((each.value for each in samples if each.name == CHECKPOINT_TIME), default=0.0)


class MetricsPage(HttpServer):
    """Serves the page; every path of the server is the page.

    Args:
      host: the address to listen on.
      port: the port to listen on.

    Raises:
      ClusterConfigError: if prometheus_client is not installed, or the server cannot listen there.
    """

    def __init__(self, host: str, port: int):
        library = _library()
        registry = library.CollectorRegistry(auto_describe=False)
        registry.register(self)
        self._core = library.core
        self._tasks: Callable[[], Sequence[TaskMetrics]] = tuple
        self._restarts: Callable[[], int] = lambda: 0
        try:
            super().__init__((host, port), library.MetricsHandler.factory(registry))
        except OSError as error:
            raise ClusterConfigError(
                "--metrics-port must be a free port of an address of this machine. Received: port "
                f"{port} of {quoted(host)} ({error.strerror}). Choose another port, or another "
                "address with --metrics-host."
            ) from None

    def show(self, tasks: Callable[[], Sequence[TaskMetrics]], restarts: Callable[[], int]) -> None:
        """Shows other tasks from now on.

        Args:
          tasks: returns what is known of each task; called by the threads that answer requests.
          restarts: returns the number of restarts so far; called by the same threads.
        """
        self._tasks, self._restarts = tasks, restarts

    def describe(self) -> Iterable[Any]:
        """Returns nothing: the registry would otherwise collect the metrics to learn of them."""
        return ()

    def collect(self) -> Iterator[Any]:
        """Returns the metrics; called by the registry for each request."""
        families = {
            name: getattr(self._core, metric.family)(
                PREFIX + name, metric.text, labels=(*_TASK_LABELS, *metric.labels)
            )
            for name, metric in METRICS.items()
        }
        for each in self._tasks():
            of_task = each.task.type, str(each.task.index)
            for name, labels, value in _samples(each, time.time()):
                if name in families and len(labels) == len(METRICS[name].labels):
                    families[name].add_metric([*of_task, *labels], value)
        yield from (family for family in families.values() if family.samples)
        restarts = getattr(self._core, _RESTARTS.family)(
            f"{PREFIX}restarts_total", _RESTARTS.text, value=self._restarts()
        )
        yield restarts


def _samples(of: TaskMetrics, now: float) -> Iterator[tuple[str, tuple[str, ...], float]]:
    if of.memory:
        yield "resident_memory_bytes", (), of.memory
    if of.report is None:
        return
    yield "report_age_seconds", (), max(now - of.report.time, 0.0)
    for sample in of.report.samples:
        if sample.name == CHECKPOINT_TIME:
            yield "checkpoint_age_seconds", sample.labels, max(now - sample.value, 0.0)
        elif math.isfinite(sample.value):
            yield sample.name, sample.labels, sample.value


def _library() -> Any:
    """Returns the package prometheus_client.

    Raises:
      ClusterConfigError: if it is not installed.
    """
    try:
        library = importlib.import_module("prometheus_client")
        importlib.import_module("prometheus_client.core")
    except ImportError as error:
        raise ClusterConfigError(
            "--metrics-port requires the package prometheus_client, which serves the page. "
            f"Received: {quoted(str(error))}. Install it: {_INSTALL}."
        ) from None
    return library
