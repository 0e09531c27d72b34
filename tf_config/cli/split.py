"""`tf-config split`."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tf_config.cli.arguments import count, offer_paths
from tf_config.launcher.signals import Interrupted, deferred_signals
from tf_config.sharding import FORMATS, Source, split

NAME = "split"
USAGE = "INPUT --shards N --output-dir DIR [--format FORMAT]"
SUMMARY = "split lines of text or TFRecords into shards, one for each worker"
EXAMPLE = "tf-config split train.txt --shards 4 --output-dir shards"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    source = parser.add_argument(
        "input",
        type=Path,
        metavar="INPUT",
        help="file, or directory, whose non-hidden files are read in the order of their names",
    )
    offer_paths(source, "file")
    parser.add_argument(
        "--shards",
        type=count,
        required=True,
        metavar="N",
        help="number of shards, DIR/<name>-00000 ...; record i goes to shard i mod N",
    )
    output = parser.add_argument(
        "--output-dir",
        type=Path,
        required=True,
        metavar="DIR",
        help="output directory, created if it does not exist; no file in it is overwritten",
    )
    offer_paths(output, "directory")
    parser.add_argument(
        "--format",
        choices=list(FORMATS),
        help="format of the input, compressed by gzip or not (default: detected from the content)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Writes the shards, and prints their number and sizes."""
    source = Source.find(arguments.input, arguments.format)
    try:
        with deferred_signals() as check, _progress_bar(source.size) as advance:

            def watch(count: int) -> None:
                check()
                advance(count)

            written = split(source, arguments.shards, arguments.output_dir, watch)
    except Interrupted as interrupted:
        print(f"tf-config: {interrupted}; no shard was written", file=sys.stderr)
        return 128 + interrupted.number
    print(written)
    return 0


@contextlib.contextmanager
def _progress_bar(total: int) -> Iterator[Callable[[int], None]]:
    """Shows a progress bar if standard error is a terminal.

    Yields:
      A function that advances the bar by a number of bytes.
    """
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

    columns = (*Progress.get_default_columns(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("split", total=total)
        yield lambda count: progress.advance(task, count)
