"""`tf-config check`."""

from __future__ import annotations

import argparse

from tf_config.cli.arguments import add_source, read

NAME = "check"
USAGE = "[OPTION ...]"
SUMMARY = "say whether TF_CONFIG is right, and if not, what is wrong"
EXAMPLE = "tf-config check --file tf_config.json"

_NO_AUTHENTICATION = (
    "note: TensorFlow's servers and Horovod's rendezvous have no authentication; whoever reaches "
    "these addresses can join the job or run code in it. Keep them off open networks."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    add_source(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints that the configuration is right."""
    config = read(arguments).config
    counts = [
        f"{len(tasks)} {task_type}"
        for task_type in ("chief", "worker", "ps")
        if (tasks := config.cluster.tasks(task_type))
    ]
    print(f"ok: {', '.join(counts)}; this task is {config.task}")
    print(_NO_AUTHENTICATION)
    return 0
