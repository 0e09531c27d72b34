"""A drawing of the placement of a job's variables and embedding tables."""

from __future__ import annotations

import os
import socket
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from strategies.collectives.workers import collectives_of
from strategies.compat.keras import layers_of, optimizer_variables, tensorflow_variable
from strategies.core.resolver import config_of
from strategies.embedding.layer import EmbeddingLayer
from strategies.files.atomic_files import all_writing, write_file
from strategies.variables.partitioned import PartitionedVariable
from strategies.variables.row_variable import RowVariable
from tf_config import ClusterSpec, Task
from tf_config.capacity import format_bytes
from tf_config.drawing import Box, draw, draw_cluster


def draw_placement(
    path: str | os.PathLike[str], strategy: tf.distribute.Strategy, model: Any = None
) -> None:
    """Writes an SVG drawing of the hosts, the tasks, and what each task holds.

    With parameter servers, the drawing shows each variable, or its slices, on its server; without
    them, the size of each worker's copies of the variables. The rows of `DistributedEmbedding`
    tables are shown at the workers or servers that own them. Call it on all workers, for example
    after training; the first worker writes the file.

        model.fit(dataset)
        strategies.draw_placement("placement.svg", strategy, model)

    Args:
      path: the path of the file.
      strategy: the strategy of the workers.
      model: the model whose variables and tables are drawn. None draws variables on servers only.

    Raises:
      ValueError: if the model is not built, if the strategy is a stock one with several workers, or
        if this task is not one of the workers, such as an evaluator.
      OSError: if the file cannot be written; a `RuntimeError` on the other workers.
    """
    collectives = collectives_of(strategy)
    resolver = strategy.cluster_resolver
    config = None if resolver is None else config_of(resolver)
    tasks = [Task("worker", 0)] if config is None else list(config.cluster.training_tasks)
    if config is not None and config.task not in tasks:
        raise ValueError(
            f"draw_placement must be called by the workers. Received: a call by {config.task}. "
            "Call it on all workers."
        )
    contents = _describe_contents(strategy, model, tasks)
    with all_writing(collectives, "Drawings", os.fspath(path)):
        if collectives.rank == 0:
            drawing = _draw(None if config is None else config.cluster, contents)
            write_file(Path(path), drawing.encode())


def _draw(cluster: ClusterSpec | None, contents: Mapping[Task, Sequence[str]]) -> str:
    if cluster is not None:
        return draw_cluster(cluster, None, contents)
    (lines,) = contents.values()
    return draw("1 process", {socket.gethostname(): [Box("worker", "worker 0", lines)]})


def _describe_contents(
    strategy: tf.distribute.Strategy, model: Any, tasks: Sequence[Task]
) -> dict[Task, list[str]]:
    """Returns lines of text on what each task holds; `tasks` are the workers by rank."""
    lines: dict[Task, list[str]] = defaultdict(list, {task: [] for task in tasks})
    registry = getattr(strategy.extended, "registry", None)
    on_servers = {} if registry is None else registry.describe_contents()
    for number, variables in on_servers.items():
        total = sum(size for _, size in variables)
        lines[Task("ps", number)].append(f"variables: {format_bytes(total)}")
    if registry is None and model is not None:
        own = [_bytes(model.variables), _bytes(optimizer_variables(model))]
        gathered = collectives_of(strategy).all_gather(tf.constant([own], tf.int64)).numpy()
        for task, (of_model, of_optimizer) in zip(tasks, gathered.tolist(), strict=True):
            lines[task].append(f"variables: {format_bytes(of_model)}")
            lines[task].append(f"optimizer: {format_bytes(of_optimizer)}")
    for layer in [] if model is None else layers_of(model):
        for name, rows in (
            layer.rows_by_owner().items() if isinstance(layer, EmbeddingLayer) else ()
        ):
            for (kind, number), count in rows.items():
                task = Task("ps", number) if kind == "ps" else tasks[number]
                lines[task].append(f"table {name}: {count:,} rows")
    for number, variables in on_servers.items():
        lines[Task("ps", number)] += [f"{name}: {format_bytes(size)}" for name, size in variables]
    return lines


def _bytes(variables: Sequence[Any]) -> int:
    """Returns the bytes of variables in this process, which has some parts of partitioned ones."""
    size = 0
    for variable in map(tensorflow_variable, variables):
        if isinstance(variable, RowVariable):  # a table, drawn by its number of rows
            continue
        parts = variable.parts if isinstance(variable, PartitionedVariable) else [variable]
        size += sum(part.shape.num_elements() * part.dtype.size for part in parts)
    return size
