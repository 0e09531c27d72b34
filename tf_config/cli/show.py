"""`tf-config show`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from tf_config.cli.arguments import offer_paths
from tf_config.cli.membership import add_source, configuration, read
from tf_config.cli.program import add_settings, request
from tf_config.cluster import VARIABLE, TFConfig
from tf_config.drawing import draw_cluster
from tf_config.errors import ClusterConfigError, quoted
from tf_config.launcher.task_resolution import settings
from tf_config.text_table import rich_table

NAME = "show"
USAGE = "[OPTION ...]"
SUMMARY = "show this process's cluster and settings, and where they come from"
EXAMPLE = "srun tf-config show"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    add_source(parser)
    add_settings(parser)
    graph = parser.add_argument(
        "--graph", type=Path, metavar="FILE", help="draw hosts and tasks to this SVG file"
    )
    offer_paths(graph, "file")


def run(arguments: argparse.Namespace) -> int:
    """Prints the topology."""
    requested = request(arguments)
    config, origin = configuration(arguments)
    resolved = settings(config, origin, requested, os.environ)
    _print_table(
        ("task", "address", "rank", ""),
        [(str(task), *row) for task, row in _rows(config).items()],
    )
    for name in ("environment", "rpc_layer"):
        if getattr(config, name):
            print(f"{name}: {getattr(config, name)}")
    print(f"read from: {origin}")
    if arguments.task is None:
        for name, value in read(arguments).variables.items():
            if name != VARIABLE:
                print(f"  {name}={value}")
    _print_table(("setting", "value", "from"), resolved)
    if arguments.graph is not None:
        _draw(config, arguments.graph)
    return 0


def _draw(config: TFConfig, path: Path) -> None:
    try:
        path.write_text(draw_cluster(config.cluster, config.task), encoding="utf-8")
    except OSError as error:
        raise ClusterConfigError(
            f"--graph must name a file that can be written. Received: {quoted(str(path))} "
            f"({error.strerror}). Choose a directory that exists."
        ) from None
    print(f"drawn: {path}")


def _rows(config: TFConfig) -> dict[str, tuple[str, str, str]]:
    ranks = {task: str(rank) for rank, task in enumerate(config.cluster.training_tasks)}
    rows = {
        str(task): (str(address), ranks.get(task, ""), "")
        for task, address in config.cluster.addresses.items()
    }
    address, rank, _ = rows.get(str(config.task), ("", "", ""))
    return {**rows, str(config.task): (address, rank, "this task")}


def _print_table(header: tuple[str, ...], rows: list[Any]) -> None:
    from rich.console import Console  # here, because the import is slow

    Console().print(rich_table(header, rows))
