"""`tf-config plan`."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tf_config.capacity import plan_capacity
from tf_config.capacity.plan import SLOT_VARIABLES
from tf_config.capacity.table import parse_number
from tf_config.cli.arguments import offer_paths, text_of
from tf_config.errors import ClusterConfigError, quoted, suggestion

NAME = "plan"
USAGE = "[FILE] [--table NAME:KEY=VALUE,... ...] [OPTION ...]"
SUMMARY = "estimate the memory, traffic and number of tasks that embedding tables need"
EXAMPLE = (
    "tf-config plan --table users:rows=1e9,width=16,zipf=1.05 --batch 4096 --workers 8 "
    "--memory-gib 64"
)
_DEEPEST = 32
# The values that can be set in the file or by options.
_OPTIONS = {
    "batch": "number of examples per worker and step",
    "workers": "number of workers (1)",
    "servers": "number of parameter servers that hold the rows (0: the workers hold them)",
    "optimizer": f"{', '.join(SLOT_VARIABLES)}, or a number of slot variables (adam)",
    "memory_gib": "memory in GiB that a task may use",
    "gbit_per_second": "network bandwidth of a task in each direction",
    "step_seconds": "time that a step may take",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    file = parser.add_argument(
        "file",
        nargs="?",
        type=Path,
        metavar="FILE",
        help="YAML or JSON: 'tables' by name, and the options below, with _ instead of -",
    )
    offer_paths(file, "file")
    parser.add_argument(
        "--table",
        action="append",
        default=[],
        metavar="NAME:KEY=VALUE,...",
        help="rows and width; hotness: ids per example (1); unique_ratio or zipf: how ids repeat",
    )
    for name, words in _OPTIONS.items():
        flag = "ps" if name == "servers" else name.replace("_", "-")
        parser.add_argument(f"--{flag}", dest=name, metavar="N", help=words)


def run(arguments: argparse.Namespace) -> int:
    """Prints the plan."""
    inputs = {} if arguments.file is None else _read(arguments.file)
    for name in _OPTIONS:
        if getattr(arguments, name) is not None:
            inputs[name] = getattr(arguments, name)
    tables = inputs.pop("tables", {})
    if not isinstance(tables, Mapping):
        raise ClusterConfigError(
            f"'tables' must be a mapping from names to tables. Received: {quoted(tables)}."
        )
    from_options = [_table(text) for text in arguments.table]
    for name, _ in from_options:
        if [other for other, _ in from_options].count(name) > 1:
            raise ClusterConfigError(
                f"--table cannot describe the same table twice. Received: {quoted(name)} twice. "
                "Omit one of them."
            )
    tables = {**tables, **dict(from_options)}
    if not tables or "batch" not in inputs:
        what = "--batch" if tables else "--table"
        raise ClusterConfigError(
            f"A plan requires tables and a batch size. Received: no {what}. Pass it, or a file "
            "that contains it."
        )
    values = {
        name: value if name == "optimizer" else parse_number(name, value)
        for name, value in inputs.items()
    }
    print(plan_capacity(tables, **values))
    return 0


def _read(path: Path) -> dict[str, Any]:
    import yaml  # here, because the import is slow

    text = text_of(path, "FILE")
    if _depth(text) > _DEEPEST:  # YAML's parser would take very long
        raise ClusterConfigError(
            f"FILE cannot have more than {_DEEPEST} nested brackets. Received: {_depth(text)} in "
            f"{quoted(str(path))}. Correct the file."
        )
    try:
        values = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError) as error:
        raise ClusterConfigError(
            f"FILE must be YAML or JSON. Received: {quoted(str(path))} ({quoted(str(error))})."
        ) from None
    known = ["tables", *_OPTIONS]
    if not isinstance(values, dict):
        raise ClusterConfigError(
            f"FILE must be a mapping with {', '.join(known)}. Received: {quoted(values)} in "
            f"{quoted(str(path))}."
        )
    for key in values:
        if key not in known:
            raise ClusterConfigError(
                f"FILE can only contain {', '.join(known)}. Received: {quoted(key)} in "
                f"{quoted(str(path))}. Correct or omit it.{suggestion(key, known)}"
            )
    return values


def _depth(text: str) -> int:
    """Returns the maximum number of open brackets, including those in strings.

    >>> _depth("{a: [1, [2]], b: [3]}")
    3
    """
    steps = (1 if character in "[{" else -1 for character in text if character in "[]{}")
    return max(itertools.accumulate(steps), default=0)


def _table(text: str) -> tuple[str, dict[str, str]]:
    """Returns the table that an option describes.

    >>> _table("users:rows=1e9,width=16")
    ('users', {'rows': '1e9', 'width': '16'})
    """
    name, colon, rest = text.partition(":")
    pairs = [part.partition("=") for part in rest.split(",")]
    if not (name and colon and all(key and equals for key, equals, _ in pairs)):
        raise ClusterConfigError(
            f"--table must be NAME:rows=N,width=N,... Received: {quoted(text)}. Correct it."
        )
    keys = [key for key, _, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise ClusterConfigError(
                f"--table cannot repeat a key. Received: {quoted(key)} twice in {quoted(text)}. "
                "Omit one of them."
            )
    return name, {key: value for key, _, value in pairs}
