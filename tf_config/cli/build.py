"""`tf-config build`."""

from __future__ import annotations

import argparse
import json
import shlex
from collections import Counter
from collections.abc import Iterable

from tf_config.builder import cluster, free_ports, place, ports_from
from tf_config.cli.arguments import add_hosts, add_roles, hosts, ps_hosts, roles
from tf_config.cluster import VARIABLE, Task, TFConfig
from tf_config.errors import ClusterConfigError

NAME = "build"
USAGE = "[OPTION ...]"
SUMMARY = "print TF_CONFIG for each task of a cluster, one per line"
EXAMPLE = "tf-config build --hosts node1:2,node2:2 --ps 1 --task worker:1 --format env"

_FIRST_PORT = 2222


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    add_roles(parser)
    add_hosts(parser, f"free ones here, {_FIRST_PORT} elsewhere")
    parser.add_argument("--task", metavar="TYPE:INDEX", help="print only this task's")
    parser.add_argument(
        "--format",
        choices=_FORMATS,
        default="json",
        help="env: shell exports; yaml: one document per task (json)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the configurations."""
    where = place(roles(arguments), hosts(arguments), ps_hosts(arguments))
    counts = Counter(host.name for host in where.values())
    ports = {}
    for host in {host.name: host for host in where.values()}.values():
        first = _FIRST_PORT if arguments.port is None else arguments.port
        if host.is_loopback and arguments.port is None:
            ports[host.name] = free_ports(counts[host.name], host.name)
        else:
            ports[host.name] = ports_from(first, counts[host.name])
    spec = cluster({task: host.name for task, host in where.items()}, ports)
    tasks = list(where) if arguments.task is None else [_find_task(where, arguments.task)]
    for config in [TFConfig(spec, task) for task in tasks]:
        print(_FORMATS[arguments.format](config))
    return 0


def _find_task(tasks: Iterable[Task], text: str) -> Task:
    task = Task.parse(text)
    if task not in tasks:
        raise ClusterConfigError(
            f"--task must name one of the requested tasks. Received: {task}, of "
            f"{', '.join(map(str, tasks))}. Correct --task, or request more tasks."
        )
    return task


def _env(config: TFConfig) -> str:
    return f"export {VARIABLE}={shlex.quote(config.to_json())}  # {config.task}"


def _yaml(config: TFConfig) -> str:
    import yaml

    values = json.loads(config.to_json())
    return "---\n" + yaml.safe_dump(values, sort_keys=False).rstrip()


_FORMATS = {"json": TFConfig.to_json, "env": _env, "yaml": _yaml}
