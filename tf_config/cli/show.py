"""`tf-config show`."""

from __future__ import annotations

import argparse

from tf_config.cli.arguments import add_source, read
from tf_config.cluster import VARIABLE

NAME = "show"
USAGE = "[OPTION ...]"
SUMMARY = "show the cluster that this process is part of, and where that is said"
EXAMPLE = "srun tf-config show"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    add_source(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the topology."""
    from rich.console import Console  # here, for it takes as long as all the rest together
    from rich.table import Table
    from rich.text import Text

    resolved = read(arguments)
    config = resolved.config
    table = Table("task", "address", "rank", "")
    ranks = {task: str(rank) for rank, task in enumerate(config.cluster.training_tasks)}
    for task, address in config.cluster.addresses.items():
        here = "this task" if task == config.task else ""
        table.add_row(str(task), Text(str(address)), ranks.get(task, ""), here)
    if config.task not in config.cluster.addresses:
        table.add_row(str(config.task), "", "", "this task")
    Console().print(table)
    for name in ("environment", "rpc_layer"):
        if getattr(config, name):
            print(f"{name}: {getattr(config, name)}")
    print(f"read from: {resolved.origin}")
    for name, value in resolved.variables.items():
        if name != VARIABLE:
            print(f"  {name}={value}")
    return 0
