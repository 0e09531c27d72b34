"""`tf-config render kubernetes`."""

from __future__ import annotations

import argparse

from tf_config.cli.arguments import add_roles, count, positive, roles
from tf_config.cli.program import add_program, add_settings
from tf_config.cli.rendering import add_output, options
from tf_config.environments.kubernetes import DEFAULT_PORT
from tf_config.render import KubernetesJob

NAME = "kubernetes"
USAGE = "--name NAME --image IMAGE [OPTION ...] [--] PROGRAM [ARG ...]"
SUMMARY = "write a manifest for Kubernetes: a headless Service, and a Job for each type of task"
EXAMPLE = "tf-config render kubernetes --name train --image IMAGE -- train.py"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the kind's arguments."""
    add_roles(parser)
    parser.add_argument(
        "--name", required=True, help="name of the Service, and prefix of the Jobs' names"
    )
    parser.add_argument(
        "--image", required=True, help="container image with this package and the program"
    )
    parser.add_argument("--namespace", metavar="NAME", help="namespace (kubectl's default)")
    parser.add_argument("--cpus-per-worker", type=positive, metavar="N", help="CPUs per pod")
    parser.add_argument(
        "--gpus-per-worker", type=positive, metavar="N", help="GPUs per pod, except ps"
    )
    parser.add_argument("--memory", metavar="SIZE", help="memory per pod, such as 4Gi")
    parser.add_argument(
        "--port",
        type=count,
        default=DEFAULT_PORT,
        metavar="N",
        help=f"port that tasks listen on ({DEFAULT_PORT})",
    )
    add_output(parser)
    add_settings(parser, "--cpus-per-worker", gpus=False)
    add_program(parser)


def render(arguments: argparse.Namespace) -> str:
    """Returns the manifest."""
    return KubernetesJob(
        roles=roles(arguments),
        program=(arguments.program, *arguments.arguments),
        name=arguments.name,
        image=arguments.image,
        namespace=arguments.namespace,
        cpus=arguments.cpus_per_worker,
        gpus=arguments.gpus_per_worker,
        memory=arguments.memory,
        port=arguments.port,
        options=options(arguments),
    ).manifest()
