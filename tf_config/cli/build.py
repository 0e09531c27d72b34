"""`tf-config build`."""

from __future__ import annotations

import argparse

from tf_config.builder import local_cluster
from tf_config.cli.arguments import add_roles, roles
from tf_config.cluster import Task, TFConfig

NAME = "build"
USAGE = "[OPTION ...]"
SUMMARY = "print a TF_CONFIG for each task of a cluster on this machine, one a line"
EXAMPLE = "tf-config build --workers 2 --task worker:1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    add_roles(parser)
    parser.add_argument("--task", metavar="TYPE:INDEX", help="print this task's only")


def run(arguments: argparse.Namespace) -> int:
    """Prints the configurations."""
    asked = roles(arguments)
    cluster = local_cluster(asked.workers, chief=asked.chief, ps=asked.ps)
    tasks = [Task.parse(arguments.task)] if arguments.task else cluster.addresses
    for config in [TFConfig(cluster, task) for task in tasks]:
        print(config.to_json())
    return 0
