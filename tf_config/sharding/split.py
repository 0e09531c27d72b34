"""Distributes the records of a source to shards, round-robin."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tf_config.errors import ClusterConfigError, quoted
from tf_config.sharding.shards import check_free, new_files, shard_names
from tf_config.sharding.source import Source


@dataclass(frozen=True)
class Split:
    """The result of a split.

    Attributes:
      records: the number of records in all shards.
      paths: the paths of the shards.
    """

    records: int
    paths: tuple[Path, ...]

    def __str__(self) -> str:
        count = len(self.paths)
        sizes = [path.stat().st_size for path in self.paths]
        records = _span(self.records // count, -(-self.records // count))
        return (
            f"records: {self.records}; shards: {count}; records per shard: {records}; "
            f"bytes per shard: {_span(min(sizes), max(sizes))}"
        )


def split(
    source: Source,
    count: int,
    directory: Path,
    watch: Callable[[int], None] = lambda count: None,
) -> Split:
    """Writes record i of `source` to shard i mod `count`; returns the result.

    Each shard keeps the order of its records, and the numbers of records differ by at most one. The
    shards are `<name>-00000`, `<name>-00001`, ... in `directory`, with the suffix `.gz` if the
    source is compressed.

    Args:
      source: the source to split.
      count: the number of shards.
      directory: the directory of the shards, created if it does not exist.
      watch: called with the number of bytes after each read; an error that it raises ends the
        split.

    Raises:
      ClusterConfigError: if the source is corrupt or has fewer records than shards, or if a shard
        exists or cannot be written. In this case, no shard is written.
    """
    if not 1 <= count < 100_000:
        raise ClusterConfigError(
            f"The number of shards must be from 1 to 99999. Received: {quoted(count)}. Use the "
            "number of workers, for example."
        )
    check_free(directory, source.name)
    names = shard_names(source.name, count, source.is_packed)
    with new_files(directory, names, source.is_packed) as files:
        write = [file.write for file in files]
        records = 0
        with contextlib.closing(source.records(watch)) as pieces:
            for data, ends in pieces:
                write[records % count](data)
                records += ends
        if records < count:
            raise ClusterConfigError(
                "Each shard must have at least one record, because a worker cannot train without "
                f"data. Received: {records} records for {count} shards. Request fewer shards, or "
                "add records."
            )
    return Split(records, tuple(directory / name for name in names))


def _span(least: int, most: int) -> str:
    return str(least) if least == most else f"{least} to {most}"
