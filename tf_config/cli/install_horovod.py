"""`tf-config install-horovod`."""

from __future__ import annotations

import argparse
import sys

from tf_config.horovod import wheel as horovod_wheel
from tf_config.horovod.build_error import BuildError

NAME = "install-horovod"
USAGE = "[--wheel]"
SUMMARY = "build Horovod once for the installed TensorFlow, and install it"
EXAMPLE = "tf-config install-horovod"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "--wheel",
        action="store_true",
        help="only print the path of the wheel, for other environments like this one",
    )


def run(arguments: argparse.Namespace) -> int:
    """Installs Horovod, or prints the wheel's path; returns 1 if it cannot be built."""
    try:
        if arguments.wheel:
            print(horovod_wheel.wheel())
        else:
            horovod_wheel.install()
    except BuildError as error:
        print(f"tf-config: error: {error}", file=sys.stderr)
        return 1
    return 0
