"""Records of a source dealt out to shards, one to each in turn."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tf_config.errors import ClusterConfigError, shown
from tf_config.sharding.shards import check_free, new_files, shard_names
from tf_config.sharding.source import Source


@dataclass(frozen=True)
class Split:
    """What was written.

    Attributes:
      records: how many records all shards have.
      paths: the shards.
    """

    records: int
    paths: tuple[Path, ...]

    def __str__(self) -> str:
        count = len(self.paths)
        sizes = [path.stat().st_size for path in self.paths]
        records = _span(self.records // count, -(-self.records // count))
        return (
            f"records: {self.records}; shards: {count}; records a shard: {records}; "
            f"bytes a shard: {_span(min(sizes), max(sizes))}"
        )


def split(
    source: Source,
    count: int,
    directory: Path,
    watch: Callable[[int], None] = lambda count: None,
) -> Split:
    """Writes record i of `source` to shard i mod `count`, and returns what was written.

    Shards differ by at most one record, and keep the order. Each is `<name>-00000`,
    `<name>-00001`, ... in `directory`, with `.gz` at the end if the source is packed.

    Args:
      source: what is cut.
      count: how many shards.
      directory: where they go. Made if it does not exist.
      watch: is told how many bytes were read, each time some were; what it raises ends this.

    Raises:
      ClusterConfigError: if the source is damaged, has fewer records than there are shards, or
        a shard cannot be written or exists. Nothing is written then.
    """
    if not 1 <= count < 100_000:
        raise ClusterConfigError(
            f"A split makes 1 to 99999 shards. Received: {shown(count)}. "
            "Ask for as many as there are workers."
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
                "Each shard has a record at least, or its worker would have no data. Received: "
                f"{records} for {count} shards. Ask for fewer shards, or add records."
            )
    return Split(records, tuple(directory / name for name in names))


def _span(least: int, most: int) -> str:
    return str(least) if least == most else f"{least} to {most}"
