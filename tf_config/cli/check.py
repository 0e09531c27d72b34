"""`tf-config check`."""

from __future__ import annotations

import argparse

from tf_config.cli.arguments import add_verbosity, seconds
from tf_config.cli.membership import add_source, configuration
from tf_config.cluster import TFConfig
from tf_config.errors import ClusterConfigError
from tf_config.reachability import connect

NAME = "check"
USAGE = "[OPTION ...]"
SUMMARY = "validate TF_CONFIG, and report what is wrong with it"
EXAMPLE = "tf-config check --file tf_config.json --connect"

_SECONDS = 5.0
_NO_AUTHENTICATION = (
    "note: TensorFlow's gRPC servers have no authentication: keep their ports on a private network."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    add_source(parser)
    parser.add_argument(
        "--connect",
        action="store_true",
        help="test whether each address is taken, closed or unreachable",
    )
    parser.add_argument(
        "--timeout", type=seconds, metavar="SECONDS", help=f"time limit of --connect ({_SECONDS:g})"
    )
    add_verbosity(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints that the configuration is valid; an invalid one raises an error."""
    if arguments.timeout is not None and not arguments.connect:
        raise ClusterConfigError(
            "--timeout requires --connect. Received: no --connect. Add it, or omit both."
        )
    config, origin = configuration(arguments)
    if arguments.verbosity >= 0:
        counts = [
            f"{len(tasks)} {task_type}"
            for task_type in ("chief", "worker", "ps")
            if (tasks := config.cluster.tasks(task_type))
        ]
        print(f"ok: {', '.join(counts)}; this task is {config.task}")
        if len({address.host for address in config.cluster.addresses.values()}) > 1:
            print(_NO_AUTHENTICATION)
    if arguments.verbosity > 0:
        for task, address in config.cluster.addresses.items():
            print(f"{task}  {address}")
        print(f"read from: {origin}")
    if arguments.connect:
        _connect(config, arguments.timeout or _SECONDS, arguments.verbosity < 0)
    return 0


def _connect(config: TFConfig, timeout: float, quiet: bool) -> None:
    reached = connect(config.cluster.addresses.values(), timeout)
    lost = []
    for task, address in config.cluster.addresses.items():
        state, reason = reached[address]
        if not quiet:
            print(f"{state:<11}  {task}  {address}  ({reason})")
        if state == "unreachable":
            lost.append(f"{task} at {address} ({reason})")
    if lost:
        raise ClusterConfigError(
            f"The host of each task must be reachable from here. Received: {'; '.join(lost)}. "
            "Check the host's name, its firewall, and whether it is up."
        )
