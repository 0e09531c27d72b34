"""The page of metrics as a test reads it."""

from __future__ import annotations

import urllib.request
from typing import Any

from tf_config import Task
from tf_config.launcher.metrics import PREFIX


def fetch(port: int) -> tuple[dict[tuple[Any, ...], float], list[Any]]:
    """Returns the values of a page by name and labels, and its families, as Prometheus reads it."""
    from prometheus_client.parser import text_string_to_metric_families

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=")
        families = list(text_string_to_metric_families(response.read().decode()))
    values = {
        (sample.name.removeprefix(PREFIX), *sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }
    return values, families


def key(name: str, task: Task, **labels: str) -> tuple[Any, ...]:
    """Returns the key of a task's value in a page."""
    of_task = {"job": task.type, "task": str(task.index)}
    return (name, *sorted({**of_task, **labels}.items()))
